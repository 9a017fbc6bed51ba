/* A library that adds O_DIRECT to each open of the file that OPEN_DIRECT names: for programs that do
 * unaligned I/O and never ask for O_DIRECT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static int flags_for(const char *path, int flags) {
	const char *named = getenv("OPEN_DIRECT");
	return named && strstr(path, named) ? flags | O_DIRECT : flags;
}

#define OPEN(NAME)                                                            \
	int NAME(const char *path, int flags, ...) {                          \
		static int (*next)(const char *, int, ...);                   \
		va_list more;                                                 \
		mode_t mode;                                                  \
		va_start(more, flags);                                        \
		mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0; \
		va_end(more);                                                 \
		if (!next)                                                    \
			next = dlsym(RTLD_NEXT, #NAME);                       \
		return next(path, flags_for(path, flags), mode);              \
	}

OPEN(open)
OPEN(open64)
