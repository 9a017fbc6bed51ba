/*
 * Sets O_DIRECT on each regular file that a program opens on the file system of $SUITES_DIRECT, so
 * that a suite written for the page cache reads and writes direct, at any alignment. Only for
 * `cargo xtask suites`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static dev_t device;

__attribute__((constructor)) static void find_device(void)
{
	const char *directory = getenv("SUITES_DIRECT");
	struct stat status;

	if (directory && stat(directory, &status) == 0)
		device = status.st_dev;
}

/* Returns fd, with O_DIRECT if it is a regular file of the file system. */
static int direct(int fd)
{
	int before = errno;
	struct stat status;

	if (fd >= 0 && device && fstat(fd, &status) == 0 && status.st_dev == device &&
	    S_ISREG(status.st_mode)) {
		int flags = fcntl(fd, F_GETFL);

		if (flags >= 0 && !(flags & O_PATH))
			fcntl(fd, F_SETFL, flags | O_DIRECT);
	}
	errno = before;
	return fd;
}

#define MODE(last)                                                                                 \
	mode_t mode = 0;                                                                           \
	if (flags & (O_CREAT | __O_TMPFILE)) {                                                     \
		va_list list;                                                                      \
		va_start(list, last);                                                              \
		mode = va_arg(list, mode_t);                                                       \
		va_end(list);                                                                      \
	}

#define OPEN(name)                                                                                 \
	int name(const char *path, int flags, ...)                                                 \
	{                                                                                          \
		int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);                     \
		MODE(flags)                                                                        \
		return direct(next(path, flags, mode));                                            \
	}

#define OPENAT(name)                                                                               \
	int name(int at, const char *path, int flags, ...)                                         \
	{                                                                                          \
		int (*next)(int, const char *, int, ...) = dlsym(RTLD_NEXT, #name);                \
		MODE(flags)                                                                        \
		return direct(next(at, path, flags, mode));                                        \
	}

#define CREAT(name)                                                                                \
	int name(const char *path, mode_t mode)                                                    \
	{                                                                                          \
		int (*next)(const char *, mode_t) = dlsym(RTLD_NEXT, #name);                       \
		return direct(next(path, mode));                                                   \
	}

/* The I/O of stdio does not pass through the symbols of libc, and stays in the page cache. */
FILE *fdopen(int fd, const char *mode)
{
	FILE *(*next)(int, const char *) = dlsym(RTLD_NEXT, "fdopen");
	int flags = fcntl(fd, F_GETFL);

	if (flags >= 0)
		fcntl(fd, F_SETFL, flags & ~O_DIRECT);
	return next(fd, mode);
}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
CREAT(creat)
CREAT(creat64)
