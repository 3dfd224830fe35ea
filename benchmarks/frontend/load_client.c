/* A load client that costs next to nothing: so many streams of one request each, over and over, until each had its rounds.
 *
 *   load_client PORT MODEL completions|chat STREAMS ROUNDS MAX_TOKENS BOARD
 *
 * One thread, epoll, connections that are kept. It reads what tailrace, vLLM's Python server and vllm-rs write: HTTP/1.1,
 * chunked, one `data: ` line an event, `choices[0].text` or `choices[0].delta.content`. Never a JSON parser: it looks for a
 * few members by their names, in events whose text is the benchmark's own. BOARD is a file of 4,096 bytes; its first eight
 * are a counter to which every token event is added as it comes, and, at a stream's end, the tokens that had no event.
 *
 * It prints one JSON object and ends with 1 if any stream failed. Times are in milliseconds unless named otherwise.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_BYTES = 65536, REQUEST_BYTES = 1024, BOARD_BYTES = 4096, EVENTS_AT_ONCE = 512 };
static const double TIMEOUT_SECONDS = 150;
static const char PROMPT[] = "Hello, my name is";

typedef struct {
    int socket, rounds_left, in_body, done, last_chunk;
    long tokens;                 /* events with text of the present answer */
    double sent_at, token_at;    /* seconds */
    size_t held;                 /* bytes of a line that is not complete */
    char buffer[BUFFER_BYTES];
} Stream;

static struct { long tokens, events, text_events, bytes, reads, failures; } total;
static struct { float *values; size_t count, room; } first_tokens, gaps;
static char request[REQUEST_BYTES];
static int request_bytes, is_chat, max_tokens, epoll, open_streams;
static uint64_t *delivered;

static void die(const char *what) { perror(what); exit(2); }

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static const char *find(const char *in, size_t length, const char *what) { return memmem(in, length, what, strlen(what)); }

static void deliver(int64_t tokens) { __atomic_add_fetch(delivered, (uint64_t)tokens, __ATOMIC_RELEASE); }

static void end_stream(Stream *stream) {
    close(stream->socket);
    stream->rounds_left = 0;
    open_streams--;
}

static void fail(Stream *stream, const char *why) {
    if (!stream->rounds_left) return;
    fprintf(stderr, "load_client: %s\n%.500s\n", why, stream->buffer);
    total.failures++;
    end_stream(stream);
}

static void send_request(Stream *stream) {
    stream->in_body = stream->done = stream->last_chunk = 0;
    stream->tokens = 0;
    stream->held = 0;
    stream->sent_at = seconds_now();
    if (send(stream->socket, request, request_bytes, MSG_NOSIGNAL) != request_bytes) die("send");
}

static void note(Stream *stream, double now) {
    if (stream->tokens == 0) first_tokens.values[first_tokens.count++] = (now - stream->sent_at) * 1e3;
    else if (gaps.count < gaps.room) gaps.values[gaps.count++] = (now - stream->token_at) * 1e3;
    stream->token_at = now;
    stream->tokens++;
    total.text_events++;
}

/* Whether the event has text, and what its usage says. */
static int has_text(const char *event, size_t length) {
    const char *usage = find(event, length, "\"completion_tokens\":");
    if (usage) total.tokens += strtol(usage + strlen("\"completion_tokens\":"), NULL, 10);
    const char *member = is_chat ? "\"content\":\"" : "\"text\":\"";
    const char *text = find(event, length, member);
    return text && text[strlen(member)] != '"';
}

static int take_line(Stream *stream, char *line, size_t length, double now) {
    if (length && line[length - 1] == '\r') length--;
    if (length > 6 && !memcmp(line, "data: ", 6)) {
        total.events++;
        if (length == 12 && !memcmp(line + 6, "[DONE]", 6)) { stream->done = 1; return 0; }
        if (find(line, length, "\"error\":{")) { fail(stream, "an error event"); return 0; }
        if (!has_text(line + 6, length - 6)) return 0;
        note(stream, now);
        return 1;
    }
    if (stream->done && length == 1 && line[0] == '0') stream->last_chunk = 1;
    else if (stream->last_chunk && length == 0) stream->last_chunk = 2;
    return 0;
}

static void end_answer(Stream *stream) {
    deliver(max_tokens - stream->tokens);
    if (stream->rounds_left > 1) { stream->rounds_left--; send_request(stream); }
    else end_stream(stream);
}

static size_t after_head(Stream *stream, size_t end) {
    stream->buffer[end] = 0;
    char *head_end = strstr(stream->buffer, "\r\n\r\n");
    if (!head_end) return 0;
    if (strncmp(stream->buffer, "HTTP/1.1 200", 12)) { fail(stream, "refused"); return 0; }
    stream->in_body = 1;
    return head_end + 4 - stream->buffer;
}

static void take_bytes(Stream *stream) {
    ssize_t got = recv(stream->socket, stream->buffer + stream->held, BUFFER_BYTES - 1 - stream->held, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) { fail(stream, "the connection broke off"); return; }
    total.bytes += got;
    total.reads++;
    size_t end = stream->held + got, at = 0;
    if (!stream->in_body && !(at = after_head(stream, end))) { stream->held = end; return; }
    double now = seconds_now();
    int text_events = 0;
    char *line_end;
    while (at < end && (line_end = memchr(stream->buffer + at, '\n', end - at))) {
        text_events += take_line(stream, stream->buffer + at, line_end - stream->buffer - at, now);
        at = line_end + 1 - stream->buffer;
    }
    stream->held = end - at;
    memmove(stream->buffer, stream->buffer + at, stream->held);
    if (text_events) deliver(text_events);
    if (stream->last_chunk == 2 && stream->rounds_left) end_answer(stream);
}

static int dial(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, made = socket(AF_INET, SOCK_STREAM, 0);
    if (made < 0 || connect(made, (void *)&address, sizeof address) < 0) die("connect");
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(made, F_SETFL, O_NONBLOCK);
    return made;
}

static void write_request(const char *model) {
    char body[REQUEST_BYTES / 2], asked[128];
    snprintf(asked, sizeof asked, is_chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]" : "\"prompt\":\"%s\"", PROMPT);
    int length = snprintf(body, sizeof body,
        "{\"model\":\"%s\",%s,\"max_tokens\":%d,\"temperature\":1.0,\"ignore_eos\":true,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true}}", model, asked, max_tokens);
    request_bytes = snprintf(request, sizeof request,
        "POST /v1/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
        is_chat ? "chat/completions" : "completions", length, body);
    if (length >= (int)sizeof body || request_bytes >= REQUEST_BYTES) { fputs("load_client: the model's name is too long\n", stderr); exit(2); }
}

static void open_board(const char *file) {
    int board = open(file, O_RDWR);
    if (board < 0) die(file);
    delivered = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, board, 0);
    if (delivered == MAP_FAILED) die("mmap");
}

static int compare(const void *one, const void *other) {
    float left = *(const float *)one, right = *(const float *)other;
    return (left > right) - (left < right);
}

static double percentile(float *values, size_t count, double share) { return count ? values[(size_t)(share * (count - 1))] : 0; }

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + 1e-6 * (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static void print_figures(double seconds) {
    qsort(first_tokens.values, first_tokens.count, sizeof(float), compare);
    qsort(gaps.values, gaps.count, sizeof(float), compare);
    printf("{\"tokens\":%ld,\"events\":%ld,\"text_events\":%ld,\"bytes\":%ld,\"reads\":%ld,\"failures\":%ld,\"seconds\":%.4f,"
           "\"client_cpu_seconds\":%.4f,\"ttft_p50_ms\":%.3f,\"ttft_p99_ms\":%.3f,\"gap_p50_ms\":%.3f,\"gap_p99_ms\":%.3f,"
           "\"gap_max_ms\":%.3f}\n",
           total.tokens, total.events, total.text_events, total.bytes, total.reads, total.failures, seconds, cpu_seconds(),
           percentile(first_tokens.values, first_tokens.count, .5), percentile(first_tokens.values, first_tokens.count, .99),
           percentile(gaps.values, gaps.count, .5), percentile(gaps.values, gaps.count, .99),
           percentile(gaps.values, gaps.count, 1));
}

int main(int count, char **words) {
    if (count != 8) { fputs("usage: load_client PORT MODEL completions|chat STREAMS ROUNDS MAX_TOKENS BOARD\n", stderr); return 2; }
    int port = atoi(words[1]), stream_count = atoi(words[4]), rounds = atoi(words[5]);
    is_chat = !strcmp(words[3], "chat");
    max_tokens = atoi(words[6]);
    write_request(words[2]);
    open_board(words[7]);
    gaps.room = (size_t)stream_count * rounds * max_tokens;
    gaps.values = malloc(gaps.room * sizeof(float));
    first_tokens.values = malloc((size_t)stream_count * rounds * sizeof(float));
    Stream *streams = calloc(stream_count, sizeof(Stream));
    epoll = epoll_create1(0);
    if (!gaps.values || !first_tokens.values || !streams || epoll < 0) die("setting up");
    for (int i = 0; i < stream_count; i++) {
        struct epoll_event watched = {.events = EPOLLIN, .data.ptr = &streams[i]};
        streams[i].socket = dial(port);
        streams[i].rounds_left = rounds;
        epoll_ctl(epoll, EPOLL_CTL_ADD, streams[i].socket, &watched);
    }
    open_streams = stream_count;
    double began_at = seconds_now();
    for (int i = 0; i < stream_count; i++) send_request(&streams[i]);
    struct epoll_event ready[EVENTS_AT_ONCE];
    while (open_streams > 0) {
        int events = epoll_wait(epoll, ready, EVENTS_AT_ONCE, 1000);
        for (int i = 0; i < events; i++) take_bytes(ready[i].data.ptr);
        if (seconds_now() - began_at > TIMEOUT_SECONDS) { fputs("load_client: out of time\n", stderr); return 2; }
    }
    print_figures(seconds_now() - began_at);
    return total.failures != 0;
}
