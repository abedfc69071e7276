/* The wall clock of a process as an operator would set it: the file named by STEPPED_CLOCK holds the seconds by which it
   is ahead. Preloaded into a database server by tests; clocks that only measure run on. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int read_clock(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return real(clock, now);
}

static long seconds_ahead(void)
{
    char text[32] = {0};
    const char *path = getenv("STEPPED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    return size > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = read_clock(clock, now);
    if (clock == CLOCK_REALTIME)
        now->tv_sec += seconds_ahead();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    int result = read_clock(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec + seconds_ahead();
    now->tv_usec = exact.tv_nsec / 1000;
    return result;
}
