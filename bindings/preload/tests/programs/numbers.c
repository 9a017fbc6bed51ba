/* The numbers of descriptors that the program uses while the engine has descriptors too, one way for
 * each name.
 *
 *   numbers NAME FILE    with DIRECT=1 in the environment the file is opened with O_DIRECT
 *
 * Prints what each call returned. The file has 64 KiB; what is printed, and what is in the file
 * afterwards, must not depend on O_DIRECT. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LENGTH = 700, TIMES = 3000, FROM = 3, TO = 8 };

static const char *path;

static int opened(void) {
	int fd = open(path, O_RDWR | (getenv("DIRECT") ? O_DIRECT : 0));
	if (fd < 0)
		printf("open: %s\n", strerror(errno));
	return fd;
}

static void said(const char *what, long result) {
	printf("%s: %s\n", what, result < 0 ? strerror(errno) : "done");
	fflush(stdout);
}

/* Gives the file of a descriptor a number that nothing takes by itself. */
static int moved(int fd, int least) {
	int high = fcntl(fd, F_DUPFD, least);
	close(fd);
	return high;
}

/* Returns how many bytes of an empty file were written. */
static int written(int fd) {
	static char content[1 << 16];
	int count = 0;
	if (pread(fd, content, sizeof content, 0) != sizeof content)
		return -1;
	for (unsigned i = 0; i < sizeof content; i++)
		count += content[i] != 0;
	return count;
}

static int empty_file(void) {
	int fd = memfd_create("other", 0);
	if (ftruncate(fd, 1 << 16))
		printf("ftruncate: %s\n", strerror(errno));
	return fd;
}

/* Other files get the numbers of descriptors that were closed past libc. */
static void raw_closes(void) {
	char bytes[LENGTH], got[LENGTH];
	int others[8], fd = opened();
	memset(bytes, 'w', sizeof bytes);
	said("pwrite", pwrite(fd, bytes, LENGTH, 5));
	syscall(SYS_close_range, FROM, ~0U, 0);
	fd = opened();
	for (int i = 0; i < 8; i++)
		others[i] = empty_file();
	said("pwrite", pwrite(fd, bytes, LENGTH, 1005));
	said("pread", pread(fd, got, LENGTH, 1005));
	printf("%d\n", memcmp(bytes, got, LENGTH));
	for (int i = 0; i < 8; i++)
		printf("written: %d\n", written(others[i]));
	for (int i = 0; i < 8; i++)
		said("close", close(others[i]));
	said("close", close(fd));
}

/* The same file gets those numbers, for appending. */
static void raw_closes_of_one_file(void) {
	char bytes[LENGTH], got[LENGTH];
	int fd = dup2(opened(), 200);
	memset(bytes, 'w', sizeof bytes);
	said("pwrite", pwrite(fd, bytes, LENGTH, 5));
	syscall(SYS_close_range, FROM, 199, 0);
	for (int i = FROM; i < 2 * TO; i++)
		open(path, O_RDWR | O_APPEND | (getenv("DIRECT") ? O_DIRECT : 0));
	said("pwrite", pwrite(fd, bytes, LENGTH, 1005));
	said("pread", pread(fd, got, LENGTH, 1005));
	printf("%d, size %lld\n", memcmp(bytes, got, LENGTH), (long long)lseek(fd, 0, SEEK_END));
	for (int i = FROM; i < 2 * TO; i++)
		said("close", close(i));
}

static int other, is_range, is_done;

/* Gives a file numbers that the program uses for nothing else, and closes them. */
static void *user_of_numbers(void *unused) {
	while (!__atomic_load_n(&is_done, __ATOMIC_RELAXED)) {
		for (int i = FROM; i < TO; i++)
			if (dup2(other, i) == i && !is_range)
				close(i);
		if (is_range)
			close_range(FROM, TO - 1, 0);
	}
	return unused;
}

static void thread(void) {
	char bytes[LENGTH], got[LENGTH];
	int fd = moved(opened(), 800), failed = 0, differ = 0;
	pthread_t user;
	other = moved(empty_file(), 900);
	pthread_create(&user, 0, user_of_numbers, 0);
	for (int i = 0; i < TIMES; i++) {
		long at = 4096 * (1 + i % 7) + 5;
		memset(bytes, 'A' + i % 26, sizeof bytes);
		failed += pwrite(fd, bytes, LENGTH, at) != LENGTH;
		failed += pread(fd, got, LENGTH, at) != LENGTH;
		differ += memcmp(bytes, got, LENGTH) != 0;
		/* The engine closes its descriptors with this one. */
		close(fcntl(fd, F_DUPFD, 500));
	}
	__atomic_store_n(&is_done, 1, __ATOMIC_RELAXED);
	pthread_join(user, 0);
	printf("failed: %d, differ: %d, written: %d\n", failed, differ, written(other));
}

static void close_range_thread(void) {
	is_range = 1;
	thread();
}

static void *writer(void *fd) {
	char bytes[LENGTH] = "bytes";
	for (int i = 0; !__atomic_load_n(&is_done, __ATOMIC_RELAXED); i++)
		if (pwrite(*(int *)fd, bytes, LENGTH, 5) != LENGTH)
			printf("pwrite: %s\n", strerror(errno));
	return 0;
}

/* The number 0 is closed while another thread writes: who takes it has it, and closes it once. */
static void standard_thread(void) {
	int fd = moved(opened(), 800), lost = 0, twice = 0;
	pthread_t thread;
	other = moved(empty_file(), 900);
	close(0);
	pthread_create(&thread, 0, writer, &fd);
	for (int i = 0; i < TIMES; i++) {
		lost += dup2(other, 0) != 0;
		for (int j = 0; j < 50; j++)
			lost += fcntl(0, F_GETFD) < 0;
		lost += close(0) != 0;
		twice += close(0) == 0;
	}
	__atomic_store_n(&is_done, 1, __ATOMIC_RELAXED);
	pthread_join(thread, 0);
	printf("lost: %d, closed twice: %d\n", lost, twice);
}

int main(int count, char **arguments) {
	static const struct { const char *name; void (*run)(void); } all[] = {
		{"raw_closes", raw_closes}, {"raw_closes_of_one_file", raw_closes_of_one_file},
		{"dup2_thread", thread},
		{"close_range_thread", close_range_thread},
		{"standard_thread", standard_thread},
	};
	if (count != 3)
		return 1;
	path = arguments[2];
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i].name, arguments[1])) {
			all[i].run();
			return 0;
		}
	return 1;
}
