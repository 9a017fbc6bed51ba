/* A signal handler that reads, writes and closes while malloc is interrupted must not allocate: the
 * program's own malloc says if it does.
 *
 *   handlers FILE */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static volatile sig_atomic_t is_interrupted, called;

static void note(void) { called += is_interrupted; }

void *malloc(size_t size) { note(); return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { note(); return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { note(); return __libc_realloc(old, size); }
void *aligned_alloc(size_t to, size_t size) { note(); return __libc_memalign(to, size); }
int posix_memalign(void **place, size_t to, size_t size) {
	note();
	return (*place = __libc_memalign(to, size)) ? 0 : 12;
}
void free(void *old) { if (old) note(); __libc_free(old); }

static const char *path;
static int file, calls_failed;

static void handle(int signal) {
	static char bytes[300], large[30001];
	int other;
	(void)signal;
	is_interrupted = 1;
	calls_failed += write(file, bytes, sizeof bytes) != sizeof bytes;
	calls_failed += pwrite(file, bytes, sizeof bytes, 77) != sizeof bytes;
	other = open(path, O_RDONLY);
	calls_failed += read(other, bytes, sizeof bytes) != sizeof bytes;
	/* Pieces of any size, until there is advice to give on them. */
	for (int i = 0; i < 300; i++)
		calls_failed += write(file, large, 30001) != 30001;
	calls_failed += dup2(other, 100) != 100;
	calls_failed += close(100) || close(other) || close(file);
	file = open(path, O_RDWR);
	is_interrupted = 0;
}

int main(int count, char **arguments) {
	if (count != 2)
		return 1;
	path = arguments[1];
	/* What is in the page cache from before would stay there. */
	file = open(path, O_RDWR | O_TRUNC);
	signal(SIGUSR1, handle);
	raise(SIGUSR1);
	raise(SIGUSR1);
	printf("failed: %d, allocations: %d\n", calls_failed, (int)called);
	return 0;
}
