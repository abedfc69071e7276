/* A disk whose syncs can fail, for programs that are started with it in LD_PRELOAD.
 *
 * Files below LOSSY_ROOT live in the system's cache, as always; what a sync has brought to the device is in the same
 * place below LOSSY_DEVICE. A failed sync does what Linux does: it reports EIO once, forgets what was to be written,
 * and leaves it in the cache, where readers go on finding it. A loss of power is to go on with LOSSY_DEVICE.
 *
 * LOSSY_FAULTS names a file with lines "PART COUNT": the next COUNT syncs of files whose path ends in PART fail.
 * LOSSY_SEED: a failed sync has brought some pages to the device, others not; without it none.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define PAGE 4096
#define MOST (1 << 20)

struct write { char *path; off_t from, to; };

static struct write unsynced[MOST];
static int count;
static unsigned long chance;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The path of an open file below LOSSY_ROOT, and its place on the device. */
static int find(int fd, char *path, char *device) {
    const char *root = getenv("LOSSY_ROOT"), *to = getenv("LOSSY_DEVICE");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = root && to ? readlink(link, path, PATH_MAX - 1) : -1;
    if (length < 0) return 0;
    path[length] = 0;
    size_t skip = strlen(root);
    if (strncmp(path, root, skip) || path[skip] != '/') return 0;
    snprintf(device, 2 * PATH_MAX, "%s%s", to, path + skip);
    return 1;
}

static void note(int fd, off_t from, off_t to) {
    char path[PATH_MAX], device[2 * PATH_MAX];
    if (to <= from || !find(fd, path, device)) return;
    pthread_mutex_lock(&turn);
    if (count == MOST) abort();
    unsynced[count++] = (struct write){strdup(path), from, to};
    pthread_mutex_unlock(&turn);
}

static int fails(const char *path) {
    const char *name = getenv("LOSSY_FAULTS");
    FILE *file = name ? fopen(name, "r") : NULL;
    if (!file) return 0;
    char parts[16][256], left[16 * 300] = "";
    int counts[16], lines = 0, failed = 0;
    while (lines < 16 && fscanf(file, "%255s %d", parts[lines], &counts[lines]) == 2) lines++;
    fclose(file);
    for (int line = 0; line < lines; line++) {
        size_t size = strlen(parts[line]), whole = strlen(path);
        if (!failed && counts[line] > 0 && whole >= size && !strcmp(path + whole - size, parts[line])) {
            failed = 1;
            counts[line]--;
        }
        sprintf(left + strlen(left), "%s %d\n", parts[line], counts[line]);
    }
    if (failed && (file = fopen(name, "w"))) {
        fputs(left, file);
        fclose(file);
    }
    return failed;
}

static void bring(int from_fd, int to_fd, off_t from, off_t to) {
    static char page[PAGE];
    for (off_t at = from; at < to;) {
        size_t size = PAGE - at % PAGE < to - at ? PAGE - at % PAGE : to - at;
        ssize_t got = REAL(pread64)(from_fd, page, size, at);
        if (got <= 0) break;
        if (REAL(pwrite64)(to_fd, page, got, at) != got) abort();
        at += got;
    }
}

static int sync_file(int fd) {
    char path[PATH_MAX], device[2 * PATH_MAX];
    struct stat found;
    if (!find(fd, path, device) || fstat(fd, &found) || !S_ISREG(found.st_mode)) return 0;
    pthread_mutex_lock(&turn);
    if (fstat(fd, &found)) abort(); /* again: while this thread waited, another may have appended to the file */
    int failed = fails(path), kept = 0;
    int reading = REAL(open)(path, O_RDONLY), writing = REAL(open)(device, O_RDWR | O_CREAT, 0600);
    const char *seed = getenv("LOSSY_SEED");
    if (failed && seed && !chance) chance = strtoul(seed, NULL, 10) * 2654435761u + 1;
    for (int at = 0; at < count; at++) {
        struct write *one = &unsynced[at];
        if (strcmp(one->path, path)) {
            unsynced[kept++] = *one;
            continue;
        }
        for (off_t page = one->from / PAGE * PAGE; page < one->to; page += PAGE) {
            chance = chance * 6364136223846793005ul + 1442695040888963407ul;
            if (failed && (!seed || chance >> 63)) continue;
            off_t from = page > one->from ? page : one->from, to = page + PAGE < one->to ? page + PAGE : one->to;
            bring(reading, writing, from, to);
        }
        free(one->path);
    }
    count = kept;
    if (!failed && REAL(ftruncate64)(writing, found.st_size)) abort();
    close(reading);
    close(writing);
    pthread_mutex_unlock(&turn);
    if (!failed) return 0;
    errno = EIO;
    return -1;
}

int fsync(int fd) { return sync_file(fd); }
int fdatasync(int fd) { return sync_file(fd); }

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) {
    ssize_t done = REAL(pwrite64)(fd, bytes, size, at);
    if (done > 0) note(fd, at, at + done);
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) { return pwrite64(fd, bytes, size, at); }

ssize_t write(int fd, const void *bytes, size_t size) {
    ssize_t done = REAL(write)(fd, bytes, size);
    if (done > 0 && fd > 2) {
        off_t end = lseek(fd, 0, SEEK_CUR);
        if (end >= done) note(fd, end - done, end);
    }
    return done;
}

/* Names are on the device at once: what is asked here is what becomes of contents. */
static int below(const char *path, char *device) {
    const char *root = getenv("LOSSY_ROOT"), *to = getenv("LOSSY_DEVICE");
    size_t skip = root ? strlen(root) : 0;
    if (!root || !to || strncmp(path, root, skip) || path[skip] != '/') return 0;
    snprintf(device, 2 * PATH_MAX, "%s%s", to, path + skip);
    return 1;
}

static void forget(const char *path, const char *renamed) {
    pthread_mutex_lock(&turn);
    int kept = 0;
    for (int at = 0; at < count; at++) {
        if (!strcmp(unsynced[at].path, path)) {
            free(unsynced[at].path);
            if (!renamed) continue;
            unsynced[at].path = strdup(renamed);
        }
        unsynced[kept++] = unsynced[at];
    }
    count = kept;
    pthread_mutex_unlock(&turn);
}

int unlink(const char *path) {
    char device[2 * PATH_MAX];
    int done = REAL(unlink)(path);
    if (!done && below(path, device)) {
        forget(path, NULL);
        REAL(unlink)(device);
    }
    return done;
}

int rename(const char *old, const char *new) {
    char from[2 * PATH_MAX], to[2 * PATH_MAX];
    int done = REAL(rename)(old, new);
    if (!done && below(old, from) && below(new, to)) {
        forget(new, NULL);
        forget(old, new);
        REAL(rename)(from, to);
    }
    return done;
}

int mkdir(const char *path, mode_t mode) {
    char device[2 * PATH_MAX];
    int done = REAL(mkdir)(path, mode);
    if (!done && below(path, device)) REAL(mkdir)(device, mode);
    return done;
}
