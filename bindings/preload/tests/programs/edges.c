/* The edges of what reads, writes and closes do, one way for each name.
 *
 *   edges NAME FILE    with DIRECT=1 in the environment the file is opened with O_DIRECT
 *
 * Prints what each call returned. The file has 64 KiB; what is printed, and what is in the file
 * afterwards, must not depend on O_DIRECT. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILE_BYTES = 65536 };

static const char *path;
static char memory[1 << 17];

static int opened(int flags) {
	int fd = open(path, flags | (getenv("DIRECT") ? O_DIRECT : 0), 0644);
	if (fd < 0)
		printf("open: %s\n", strerror(errno));
	return fd;
}

/* Prints a result, and the position. */
static void said(const char *what, long result, int fd) {
	if (result < 0)
		printf("%s: %s", what, strerror(errno));
	else
		printf("%s: %ld", what, result);
	printf(" at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
	fflush(stdout);
}

static void use(int fd) { said("pread", pread(fd, memory + 1, 5000, 77), fd); }

/* Memory that is not there, or not for this: EFAULT, and the position stays. */
static void addresses(void) {
	long page = sysconf(_SC_PAGESIZE);
	int fd = opened(O_RDWR), short_file = memfd_create("short", 0), ends[2];
	char *none = mmap(0, 4 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *fixed = mmap(0, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *past_end = mmap(0, page, PROT_READ | PROT_WRITE, MAP_SHARED, short_file, 0);
	char *last = none + 2 * page - 100;
	struct iovec part = {none + 1, 700}, null = {0, 700};
	mprotect(none + page, page, PROT_READ | PROT_WRITE);
	said("read to none", read(fd, none + 1, 1000), fd);
	said("pread to 8", pread(fd, (void *)8, 1000, 77), fd);
	said("pread to null", pread(fd, 0, 1000, 77), fd);
	said("pread past all", pread(fd, (void *)-4097L, 1000, 77), fd);
	said("read to read-only", read(fd, fixed + 1, 1000), fd);
	said("write of read-only", write(fd, fixed + 1, 1001), fd);
	said("pread past a mapped file", pread(fd, past_end + 1, 1000, 77), fd);
	said("write of none", write(fd, none + 1, 1000), fd);
	said("pwrite of none", pwrite(fd, none + 1, 1000, 30001), fd);
	said("pwrite past a mapped file", pwrite(fd, past_end + 1, 1000, 77), fd);
	said("readv to none", readv(fd, &part, 1), fd);
	said("preadv to null", preadv(fd, &null, 1, 77), fd);
	said("writev of none", writev(fd, &part, 1), fd);
	said("readv of bad segments", readv(fd, (void *)0x1000, 2), fd);
	said("writev of bad segments", writev(fd, (void *)0x1000, 2), fd);
	if (pipe(ends))
		return;
	said("sendfile at a bad offset", sendfile(ends[1], fd, (void *)8, 1001), fd);
	said("copy from a bad offset", copy_file_range(fd, (void *)8, fd, 0, 1001, 0), fd);
	/* The file ends before the memory that there is. */
	said("the end", pread(fd, last, FILE_BYTES, FILE_BYTES - 99), fd);
	said("the end", lseek(fd, FILE_BYTES - 98, SEEK_SET), fd);
	said("the end", read(fd, last, FILE_BYTES), fd);
	said("past the end", read(fd, none + 1, FILE_BYTES), fd);
	use(fd);
}

int main(int count, char **arguments) {
	static const struct { const char *name; void (*run)(void); } all[] = {
		{"addresses", addresses},
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
