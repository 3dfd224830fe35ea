"""What the simulated engine says under `behaviour: corpus`: short paragraphs in many scripts, written for this project.

Never a model: a paragraph is chosen by the prompt and the seed, so the same request says the same thing.
"""

from __future__ import annotations

from collections.abc import Sequence

_TEXT = """
A stream is a promise kept one piece at a time. The reader sees the first words while the last ones are still being
made, and can leave whenever enough has been said. What was promised must arrive whole: no letter lost, none twice.
~~~
Der Fluss fließt unter der Brücke hindurch, und das Mühlrad dreht sich, solange jemand Mehl braucht. Öffnet niemand
die Tür, so schließt der Müller die Schleuse und spart das Wasser für später.
~~~
L'été, les élèves s'asseyaient au bord du canal et comptaient les péniches : « Une, deux, trois… et celle-là, où
va-t-elle ? » Personne ne savait, mais chacun avait son idée.
~~~
Когда вода доходит до отметки, сторож поднимает заслонку. Лишнее уходит в отводный канал, и мельница не стоит ни
минуты.
~~~
水は高い所から低い所へ流れます。水車が回るたびに、少しずつ粉が挽かれ、村の人々はそれを待っています。
~~~
水从渠里流过,推动轮子,然后又回到河里。没有人要它停,它就一直流;有人说够了,闸门便落下。
~~~
물은 낮은 곳으로 흐르고, 물레방아는 그 힘으로 돌아갑니다. 아무도 기다리지 않으면 문을 닫고 내일을 위해 아껴 둡니다.
~~~
पानी नहर से होकर पहिये को घुमाता है और फिर नदी में लौट जाता है। जब कोई नहीं माँगता, तब फाटक बंद कर दिया जाता है।
~~~
يمرّ الماء تحت الجسر فيدير العجلة، ثم يعود إلى النهر. وحين لا ينتظر أحدٌ الطحين تُغلق البوابة.
~~~
น้ำไหลผ่านรางแล้วหมุนกังหัน จากนั้นก็กลับคืนสู่แม่น้ำ เมื่อไม่มีใครรอ ประตูน้ำก็ปิดลง
~~~
Today's log: 🚰 opened at 6:00, 🌊 peak at noon, 👩‍🔧 checked the gate, 🏳️‍🌈 flag up, 👍🏽 all well.
Tomorrow: 🧹 clean the race.
~~~
```python
def tailrace(level_cm: int, limit_cm: int = 120) -> int:
    return max(0, level_cm - limit_cm)

print([tailrace(level) for level in (90, 121, 300)])
```
"""
PARAGRAPHS = tuple(text.strip() for text in _TEXT.split("~~~"))


def paragraph(prompt_token_ids: Sequence[int], seed: int | None) -> str:
    """The paragraph for this prompt and seed; every paragraph comes up."""
    return PARAGRAPHS[(sum(prompt_token_ids) + len(prompt_token_ids) + (seed or 0)) % len(PARAGRAPHS)]
