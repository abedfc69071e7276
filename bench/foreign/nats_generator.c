// A load generator on the C client of NATS, for streams of JetStream on files. Its modes and its result are those of
// generator.cpp.
//
//   nats declare HOST:PORT NAME
//   nats send    HOST:PORT NAME --count N --size BYTES [--connections C]
//   nats receive HOST:PORT NAME --count N              [--connections C]
//   nats latency HOST:PORT NAME --rate PER_SECOND --seconds S --size BYTES
//
// A message counts as sent when the server has acknowledged it for its stream. A connection has 1,000 messages in
// flight. Receivers share one consumer with explicit acknowledgements; each waits for the server's answer to its last
// one. The stream is a work queue: an acknowledged message leaves it.

#include <nats/nats.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WINDOW = 1000, POLL_MS = 100, ANSWER_MS = 60000, TICK_NS = 1000000 };

typedef struct {
    const char* mode;
    const char* name;
    char url[256];
    int64_t count, size, connections, rate, seconds;
} Options;

typedef struct {
    const Options* options;
    natsConnection* connection;
    jsCtx* context;
    natsSubscription* subscription;
    int64_t share;
    double first_s, last_s;
} Part;

static atomic_int_least64_t received;
static int64_t* latencies_us;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char* doing, const char* reason) {
    fprintf(stderr, "nats: %s: %s\n", doing, reason);
    exit(1);
}

static void check(natsStatus status, const char* doing) {
    if (status != NATS_OK) fail(doing, natsStatus_GetText(status));
}

static void not_stored(jsCtx* context, jsPubAckErr* error, void* closure) {
    (void)context, (void)closure;
    fail("publish", error->ErrText ? error->ErrText : natsStatus_GetText(error->Err));
}

static jsCtx* connect_to(const Options* options, natsConnection** connection) {
    jsOptions settings;
    jsCtx* context = NULL;
    check(natsConnection_ConnectTo(connection, options->url), "connect");
    jsOptions_Init(&settings);
    settings.Wait = ANSWER_MS;
    settings.PublishAsync.MaxPending = WINDOW;
    settings.PublishAsync.ErrHandler = not_stored;
    check(natsConnection_JetStream(&context, *connection, &settings), "open JetStream");
    return context;
}

static void declare(const Options* options) {
    natsConnection* connection = NULL;
    jsCtx* context = connect_to(options, &connection);
    jsStreamConfig stream;
    jsErrCode code = 0;
    const char* subjects[] = {options->name};
    jsStreamConfig_Init(&stream);
    stream.Name = options->name;
    stream.Subjects = subjects;
    stream.SubjectsLen = 1;
    stream.Storage = js_FileStorage;
    stream.Retention = js_WorkQueuePolicy;
    check(js_AddStream(NULL, context, &stream, NULL, &code), "create the stream");
}

static void await_acknowledgements(jsCtx* context) {
    jsPubOptions wait;
    jsPubOptions_Init(&wait);
    wait.MaxWait = ANSWER_MS;
    check(js_PublishAsyncComplete(context, &wait), "wait for acknowledgements");
}

static void* send_share(void* argument) {
    Part* part = argument;
    char* body = malloc((size_t)part->options->size);
    memset(body, 'x', (size_t)part->options->size);
    part->first_s = now_s();
    for (int64_t sent = 0; sent < part->share; ++sent)
        check(js_PublishAsync(part->context, part->options->name, body, (int)part->options->size, NULL), "publish");
    await_acknowledgements(part->context);
    part->last_s = now_s();
    free(body);
    return NULL;
}

static natsSubscription* subscribe(const Options* options, jsCtx* context) {
    natsSubscription* subscription = NULL;
    jsSubOptions how;
    jsErrCode code = 0;
    jsSubOptions_Init(&how);
    how.ManualAck = true;
    how.Queue = "bench";
    how.Config.AckPolicy = js_AckExplicit;
    how.Config.MaxAckPending = WINDOW * options->connections;
    check(js_SubscribeSync(&subscription, context, options->name, NULL, &how, &code), "subscribe");
    return subscription;
}

static void* receive_share(void* argument) {
    Part* part = argument;
    const Options* options = part->options;
    while (atomic_load(&received) < options->count) {
        natsMsg* message = NULL;
        const natsStatus status = natsSubscription_NextMsg(&message, part->subscription, POLL_MS);
        if (status == NATS_TIMEOUT) continue;
        check(status, "receive");
        if (part->first_s == 0) part->first_s = now_s();
        check(natsMsg_Ack(message, NULL), "acknowledge");
        natsMsg_Destroy(message);
        atomic_fetch_add(&received, 1);
    }
    check(natsConnection_FlushTimeout(part->connection, ANSWER_MS), "wait for the server");
    part->last_s = now_s();
    return NULL;
}

static void* receive_timed(void* argument) {
    Part* part = argument;
    const Options* options = part->options;
    for (int64_t seen = 0; seen < options->count;) {
        natsMsg* message = NULL;
        int64_t due_ns;
        const natsStatus status = natsSubscription_NextMsg(&message, part->subscription, POLL_MS);
        if (status == NATS_TIMEOUT) continue;
        check(status, "receive");
        memcpy(&due_ns, natsMsg_GetData(message), sizeof due_ns);
        latencies_us[seen++] = (now_ns() - due_ns) / 1000;
        check(natsMsg_Ack(message, NULL), "acknowledge");
        natsMsg_Destroy(message);
    }
    part->last_s = now_s();
    return NULL;
}

// Each message carries the time at which a tick that came was to send it.
static void* send_timed(void* argument) {
    Part* part = argument;
    const Options* options = part->options;
    char* body = calloc(1, (size_t)options->size);
    part->first_s = now_s();
    const int64_t start_ns = now_ns();
    for (int64_t sent = 0; sent < options->count;) {
        const struct timespec tick = {0, TICK_NS};
        nanosleep(&tick, NULL);
        const int64_t woken_ns = now_ns();
        while (sent < options->count && start_ns + sent * 1000000000 / options->rate <= woken_ns) {
            memcpy(body, &woken_ns, sizeof woken_ns);
            check(js_PublishAsync(part->context, options->name, body, (int)options->size, NULL), "publish");
            ++sent;
        }
    }
    await_acknowledgements(part->context);
    free(body);
    return NULL;
}

static void run(Part* parts, int64_t number, void* (*of[])(void*)) {
    pthread_t threads[64];
    for (int64_t index = 0; index < number; ++index)
        if (pthread_create(&threads[index], NULL, of[index], &parts[index])) fail("start", "no thread");
    for (int64_t index = 0; index < number; ++index) pthread_join(threads[index], NULL);
}

static void print(const Options* options, const Part* parts, int64_t number) {
    double first_s = 0, last_s = 0;
    for (int64_t index = 0; index < number; ++index) {
        const Part* part = &parts[index];
        if (part->first_s > 0 && (first_s == 0 || part->first_s < first_s)) first_s = part->first_s;
        if (part->last_s > last_s) last_s = part->last_s;
    }
    printf("{\"messages\": %lld, \"first_s\": %.6f, \"last_s\": %.6f", (long long)options->count, first_s, last_s);
    if (latencies_us) {
        printf(", \"latencies_us\": [");
        for (int64_t index = 0; index < options->count; ++index)
            printf("%s%lld", index ? "," : "", (long long)latencies_us[index]);
        printf("]");
    }
    printf("}\n");
}

static Options parse(int argc, char** argv) {
    Options options = {.count = 10000, .size = 1024, .connections = 1, .rate = 1000, .seconds = 5};
    if (argc < 4) fail("usage", "nats declare|send|receive|latency HOST:PORT NAME [--option number]...");
    options.mode = argv[1];
    options.name = argv[3];
    snprintf(options.url, sizeof options.url, "nats://%s", argv[2]);
    for (int index = 4; index + 1 < argc; index += 2) {
        const int64_t value = strtoll(argv[index + 1], NULL, 10);
        if (value < 1) fail(argv[index], "must be at least 1");
        if (!strcmp(argv[index], "--count")) options.count = value;
        else if (!strcmp(argv[index], "--size")) options.size = value;
        else if (!strcmp(argv[index], "--connections")) options.connections = value;
        else if (!strcmp(argv[index], "--rate")) options.rate = value;
        else if (!strcmp(argv[index], "--seconds")) options.seconds = value;
        else fail(argv[index], "unknown option");
    }
    if (options.connections > 64) fail("--connections", "must be at most 64");
    if (options.size < (int64_t)sizeof(int64_t)) fail("--size", "must hold a time of 8 bytes");
    return options;
}

int main(int argc, char** argv) {
    Options options = parse(argc, argv);
    Part parts[64] = {0};
    void* (*of[64])(void*) = {0};
    int64_t number = options.connections;
    if (!strcmp(options.mode, "declare")) {
        declare(&options);
        return 0;
    }
    if (!strcmp(options.mode, "latency")) {
        number = 2;
        options.connections = 1;
        options.count = options.rate * options.seconds;
        latencies_us = calloc((size_t)options.count, sizeof *latencies_us);
        of[0] = receive_timed;
        of[1] = send_timed;
    } else if (strcmp(options.mode, "send") && strcmp(options.mode, "receive")) {
        fail(options.mode, "unknown mode");
    }
    for (int64_t index = 0; index < number; ++index) {
        parts[index].options = &options;
        parts[index].share = options.count / number + (index < options.count % number);
        if (!latencies_us) of[index] = !strcmp(options.mode, "send") ? send_share : receive_share;
        parts[index].context = connect_to(&options, &parts[index].connection);
        // One after the other: the first one makes the consumer.
        if (of[index] != send_share && of[index] != send_timed)
            parts[index].subscription = subscribe(&options, parts[index].context);
    }
    run(parts, number, of);
    print(&options, parts, number);
    return 0;
}
