/* Fails calls on the files of one folder, as SQLite's own tests fail theirs ("How SQLite Is Tested", "I/O Error
 * Testing"). Preload it (ld.so(8), LD_PRELOAD).
 *
 * Environment:
 *   FAILING_FOLDER    absolute, without links in it
 *   FAILING_CONTROL   a file that holds a struct control, which failing_calls.py has mapped, too
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static struct control {
    int64_t calls; /* on files of the folder, so far */
    int64_t first; /* the number of the first call that fails; 0 for none */
    int64_t most;  /* how many fail */
    int64_t error; /* the errno of those */
    int64_t torn;  /* the first one, where it is a write, is done by half before the next ones fail */
    int64_t hits;  /* how many have failed */
} *control;
static char folder[4096];
static size_t length;

typedef int (*opener)(const char *, int, ...);
typedef int (*opener_at)(int, const char *, int, ...);

__attribute__((constructor)) static void begin(void)
{
    const char *named = getenv("FAILING_FOLDER"), *path = getenv("FAILING_CONTROL");
    if (!named || !path)
        return;
    int file = ((opener)dlsym(RTLD_NEXT, "open"))(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    snprintf(folder, sizeof folder, "%s", named);
    length = strlen(folder);
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    control = mapped == MAP_FAILED ? NULL : mapped;
}

static int is_inside(const char *path)
{
    return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

static int is_ours(int file)
{
    char link[64], path[4096];
    if (!control)
        return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t found = readlink(link, path, sizeof path - 1);
    errno = before;
    path[found < 0 ? 0 : found] = 0;
    return is_inside(path);
}

/* 0: the call goes on; 1: it fails, errno is set; 2: half of it is done */
static int fails(size_t bytes)
{
    int64_t call = __atomic_add_fetch(&control->calls, 1, __ATOMIC_SEQ_CST);
    int64_t since = call - __atomic_load_n(&control->first, __ATOMIC_SEQ_CST);
    if (!control->first || since < 0 || since >= control->most)
        return 0;
    __atomic_add_fetch(&control->hits, 1, __ATOMIC_SEQ_CST);
    if (!since && control->torn && bytes > 1)
        return 2;
    errno = (int)control->error;
    return 1;
}

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        return control && is_inside(path) && fails(0) ? -1 : NEXT(opener, #name)(path, flags, mode);                   \
    }

#define OPEN_AT(name)                                                                                                  \
    int name(int at, const char *path, int flags, ...)                                                                 \
    {                                                                                                                  \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        return control && is_inside(path) && fails(0) ? -1 : NEXT(opener_at, #name)(at, path, flags, mode);            \
    }

#define PWRITE(name, offset)                                                                                           \
    ssize_t name(int file, const void *data, size_t bytes, offset at)                                                  \
    {                                                                                                                  \
        int how = is_ours(file) ? fails(bytes) : 0;                                                                    \
        return how == 1 ? -1                                                                                           \
                        : NEXT(ssize_t(*)(int, const void *, size_t, offset), #name)(file, data, how ? bytes / 2 : bytes, at); \
    }

#define SYNC(name)                                                                                                     \
    int name(int file)                                                                                                 \
    {                                                                                                                  \
        return is_ours(file) && fails(0) ? -1 : NEXT(int (*)(int), #name)(file);                                       \
    }

#define TRUNCATE(name, offset)                                                                                         \
    int name(int file, offset size)                                                                                    \
    {                                                                                                                  \
        return is_ours(file) && fails(0) ? -1 : NEXT(int (*)(int, offset), #name)(file, size);                         \
    }

OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
SYNC(fsync)
SYNC(fdatasync)
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

ssize_t write(int file, const void *data, size_t bytes)
{
    int how = is_ours(file) ? fails(bytes) : 0;
    return how == 1 ? -1 : NEXT(ssize_t(*)(int, const void *, size_t), "write")(file, data, how ? bytes / 2 : bytes);
}
