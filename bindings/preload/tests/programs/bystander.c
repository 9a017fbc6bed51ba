/* Programs that ask for nothing, and are confined, count their threads and descriptors, or share
 * files: one way for each name.
 *
 *   bystander NAME FILE
 *
 * What is printed, and what is in the file afterwards, must not depend on `dio run`. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, FILES = 40, PROCESSES = 8, PART = 1300001, SHARED = 6, TIMES = 3000 };

static const char *path;
static char memory[MIB];

static int other(const char *suffix, int flags) {
	char name[4096];
	snprintf(name, sizeof name, "%s%s", path, suffix);
	int fd = open(name, flags | O_CREAT, 0755);
	if (fd < 0)
		printf("open: %s\n", strerror(errno));
	return fd;
}

/* Permits what a program of reads and writes needs, and refuses the rest. */
static void confine(unsigned refusal, int by_number) {
	static const int permitted[] = {
		SYS_read, SYS_write, SYS_close, SYS_exit, SYS_exit_group, SYS_mmap, SYS_munmap, SYS_brk,
		SYS_lseek, SYS_rt_sigreturn, SYS_getpid, SYS_futex, SYS_madvise, SYS_mprotect, SYS_dup3,
		SYS_getrandom,
	};
	static char out[4096];
	static struct sock_filter code[64] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	int count = sizeof permitted / sizeof *permitted, at = 1;
	for (int i = 0; i < count; i++)
		code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, permitted[i], count - i, 0);
	code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, refusal);
	code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {at, code};
	/* stdio looks at the file only to choose a buffer. */
	setvbuf(stdout, out, _IOFBF, sizeof out);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (by_number ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
		      : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		printf("seccomp: %s\n", strerror(errno));
}

/* Reads and writes under a filter. */
static void confined(unsigned refusal, int by_number) {
	int fd = open(path, O_RDWR | O_TRUNC);
	long written = 0, got = 0, last;
	write(fd, memory, 1000);
	confine(refusal, by_number);
	for (int i = 0; i < 12; i++)
		if ((last = write(fd, memory, MIB)) < 0)
			printf("write: %s\n", strerror(errno));
		else
			written += last;
	lseek(fd, 0, SEEK_SET);
	while ((last = read(fd, memory, MIB)) > 0)
		got += last;
	printf("written %ld, read %ld, closed %d\n", written, got, close(fd));
}

static void confined_errors(void) { confined(SECCOMP_RET_ERRNO | EPERM, 0); }
static void confined_kills(void) { confined(SECCOMP_RET_KILL_PROCESS, 0); }
static void confined_by_number(void) { confined(SECCOMP_RET_KILL_PROCESS, 1); }

/* Closes under a filter, after a request that the library served. */
static void confined_closes(void) {
	int fd = open(path, O_RDWR | (getenv("DIRECT") ? O_DIRECT : 0));
	FILE *stream = fopen(path, "r+");
	long written = pwrite(fd, memory + 1, 1000, 1);
	dup3(fd, 60, 0);
	fputs("last", stream);
	confine(SECCOMP_RET_KILL_PROCESS, 0);
	int other = dup3(fd, 61, 0);
	printf("written %ld, taken %d, closed %d, ", written, other, fclose(stream));
	printf("%d %d %d\n", close(fd), close(60), close(61));
}

/* Calls by their number have six arguments, and set errno. */
static void by_number(void) {
	int fd = open(path, O_RDWR | O_TRUNC);
	for (int i = 0; i < 2; i++)
		write(fd, i ? "second" : "first", 6), lseek(fd, 4096, SEEK_SET);
	char *page = (char *)syscall(SYS_mmap, 0L, 4096L, (long)PROT_READ, (long)MAP_SHARED, (long)fd, 4096L);
	printf("%.6s, ", page);
	errno = 0;
	long failed = syscall(SYS_lseek, -1, 0, 0);
	printf("%ld %s, ", failed, strerror(errno));
	errno = 0;
	failed = prctl(PR_SET_NAME, "number");
	printf("%ld %s, ", failed, strerror(errno));
	failed = prctl(-1);
	printf("%ld %s\n", failed, strerror(errno));
}

static int threads(void) {
	char line[256];
	int count = 0;
	FILE *about = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, about))
		sscanf(line, "Threads: %d", &count);
	fclose(about);
	return count;
}

/* A copy leaves the program with one thread. */
static void copy_threads(void) {
	int from = open(path, O_RDWR | O_TRUNC), to = other("-to", O_RDWR | O_TRUNC);
	for (int i = 0; i < 16; i++)
		write(from, memory, MIB);
	fsync(from);
	off_t offset = 0;
	printf("sendfile %ld\n", (long)sendfile(to, from, &offset, 16 * MIB));
	printf("threads %d, unshare %d\n", threads(), unshare(CLONE_NEWUSER));
}

static int count_open(void) {
	int count = 0;
	DIR *all = opendir("/proc/self/fd");
	while (readdir(all))
		count++;
	closedir(all);
	return count;
}

/* Files that are closed past libc, as libuv does, are closed. */
static void raw_closes(void) {
	for (int i = 0; i < FILES; i++) {
		int fd = other("-many", O_WRONLY | O_TRUNC);
		write(fd, memory, 3000);
		for (int j = 0; j < 20; j++)
			write(fd, memory, 70000);
		syscall(SYS_close, fd);
	}
	printf("open: %d\n", count_open());
}

/* A program that was written, and closed past libc, can be executed. */
static void executed(void) {
	int from = open("/bin/true", O_RDONLY), to = other("-program", O_WRONLY | O_TRUNC), status;
	char name[4096];
	long got;
	while ((got = read(from, memory, 3000)) > 0)
		write(to, memory, got);
	syscall(SYS_close, to);
	snprintf(name, sizeof name, "%s-program", path);
	if (!fork()) {
		execl(name, name, (char *)0);
		_exit(errno == ETXTBSY ? 26 : 1);
	}
	wait(&status);
	printf("status %d\n", WEXITSTATUS(status));
}

/* Processes copy parts of any length to one file. */
static void parts(void) {
	static char part[PART], got[PART];
	int wrong = 0, from = other("-from", O_RDWR | O_TRUNC);
	memset(part, 'p', PART);
	write(from, part, PART);
	for (int file = 0; file < SHARED; file++) {
		int to = other("-shared", O_RDWR | O_TRUNC);
		for (int i = 0; i < PROCESSES; i++)
			if (!fork()) {
				loff_t in = 0, out = (loff_t)i * PART;
				long left = PART, moved = 1;
				while (left > 0 && moved > 0)
					left -= moved = copy_file_range(from, &in, to, &out, left, 0);
				_exit(0);
			}
		while (wait(0) > 0)
			;
		for (int i = 0; i < PROCESSES; i++)
			wrong += pread(to, got, PART, (off_t)i * PART) != PART || memcmp(got, part, PART);
		close(to);
	}
	printf("wrong parts: %d\n", wrong);
}

static int source, target, is_done;

static void *copier(void *unused) {
	while (!__atomic_load_n(&is_done, __ATOMIC_RELAXED)) {
		off_t in = 0, out = 100;
		if (copy_file_range(source, &in, target, &out, 2 * MIB, 0) < 0)
			printf("copy: %s\n", strerror(errno));
	}
	return unused;
}

/* A thread writes in front of what another one copies. */
static void beside(void) {
	char bytes[100], got[100];
	int lost = 0;
	pthread_t thread;
	source = other("-from", O_RDWR | O_TRUNC);
	target = other("-shared", O_RDWR | O_TRUNC);
	for (int i = 0; i < 4; i++)
		write(source, memory, MIB), write(target, memory, MIB);
	fsync(source), fsync(target);
	pthread_create(&thread, 0, copier, 0);
	for (int i = 1; i <= TIMES; i++) {
		memset(bytes, i, sizeof bytes);
		pwrite(target, bytes, sizeof bytes, 0);
		sched_yield();
		pread(target, got, sizeof got, 0);
		lost += memcmp(bytes, got, sizeof got) != 0;
	}
	__atomic_store_n(&is_done, 1, __ATOMIC_RELAXED);
	pthread_join(thread, 0);
	printf("lost: %d\n", lost);
}

/* What a child has written is written back when it exits: an error of that is the parent's fsync. */
static void fsync_of_the_parent(void) {
	int fd = open(path, O_RDWR);
	if (!fork()) {
		write(fd, memory, MIB);
		write(fd, memory, MIB);
		exit(0);
	}
	wait(0);
	printf("fsync: %s\n", fsync(fd) ? strerror(errno) : "done");
}

int main(int count, char **arguments) {
	static const struct { const char *name; void (*run)(void); } all[] = {
		{"confined_errors", confined_errors}, {"confined_kills", confined_kills},
		{"confined_by_number", confined_by_number}, {"confined_closes", confined_closes},
		{"by_number", by_number}, {"copy_threads", copy_threads},
		{"raw_closes", raw_closes}, {"executed", executed}, {"parts", parts},
		{"beside", beside}, {"fsync_of_the_parent", fsync_of_the_parent},
	};
	if (count != 3)
		return 1;
	path = arguments[2];
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i].name, arguments[1])) {
			all[i].run();
			fflush(stdout);
			return 0;
		}
	return 1;
}
