"""Chat templates of every manner that the renderer must serve, written for the tests.

Never copied from a model: each shows one habit of real ones, named by its constant.
"""

from __future__ import annotations

PLAIN = """\
{%- for message in messages %}
{{- '<|start|>' + message['role'] + '\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"""

STRIPPING = """\
{{ bos_token }}{% for message in messages %}
[INST]{{ message.role }}: {{ message.content | trim }}[/INST]
{% endfor %}{% if add_generation_prompt %}<|start|>{% endif %}"""

TOOLS = """\
{%- if tools %}{{ '<|start|>system\\nTools:' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ '<|end|>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<|start|>' + message.role + ('=' + message.name if message.name else '') + '\\n' }}
{%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}
{%- generation %}{{ message.content }}{% endgeneration %}
{%- for call in message.tool_calls or [] %}
{{- '\\ncall ' + call.id + ' ' + call.function.name + '(' + (call.function.arguments | tojson(indent=2)) + ')' }}
{%- endfor %}
{{- '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant\\n' }}
{%- if not thinking %}{{ '<think></think>' }}{% endif %}
{%- endif %}
"""

TEXT_ARGUMENTS = """\
{%- for message in messages %}
{{- '<|start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and message.content is none %}
{%- for call in message.tool_calls %}{{ call.function.name + ' ' + call.function.arguments }}{% endfor %}
{%- else %}{{ message.content }}{% endif %}
{{- '<|end|>\\n' }}
{%- endfor %}"""

XML_ARGUMENTS = """\
{%- for message in messages %}
{{- '<|start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<function=' + call.function.name + '>' }}
{%- for key, value in call.function.arguments.items() %}
{{- '<' + key + '>' + (value | string) + '</' + key + '>' }}
{%- endfor %}
{%- endfor %}
{{- '<|end|>\\n' }}
{%- endfor %}"""

TREACHEROUS = """\
{%- for message in messages %}
{{- '<|' + (message.name or 'user') + '|>' }}
{{- message.content | replace('~', '') }}{{ (message.tool_call_id or '') }}
{{- '<|end|>' if message.content.startswith('quiet') else '<|end|><|end|>' }}
{%- endfor %}
{{- messages | tojson(ensure_ascii=true) }}{{ messages[0] }}{{ '<|start' + messages[-1].content }}"""
"""Joins the client's texts to halves of control tokens, cuts from their middle, looks at them, and escapes them."""

TRUSTING = """\
{%- for message in messages %}
{{- '<|start|>' + message.content }}{% if '<|end|>' not in message.content %}{{ '<|end|>' }}{% endif %}
{%- endfor %}"""
"""Ends a turn only where the client's text does not look as if it ended it."""

STRICT = """\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}
{%- if mode is defined %}{{ 1 + mode }}{% endif %}
{%- if tools %}{{ tools[0].function.parameters.properties.city.type + '!' }}{% endif %}"""
