/* Unaligned reads and writes by descriptors that came about in every way, one way for each name.
 *
 *   descriptors NAME FILE    with DIRECT=1 in the environment the file is opened with O_DIRECT
 *
 * Prints what each call returned. The file has 64 KiB; what is printed, and what is in the file
 * afterwards, must not depend on O_DIRECT. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *path, *program;
static char memory[1 << 17];

static int direct(void) { return getenv("DIRECT") ? O_DIRECT : 0; }

static int opened(int flags) {
	int fd = open(path, flags | direct(), 0644);
	if (fd < 0)
		printf("open: %s\n", strerror(errno));
	return fd;
}

static unsigned sum(const char *bytes, long count) {
	unsigned sum = 1;
	for (long i = 0; i < count; i++)
		sum = sum * 31 + (unsigned char)bytes[i];
	return sum;
}

/* Prints a result, the bytes of a read, and the position. */
static void said(const char *what, long result, const char *bytes, int fd) {
	if (result < 0)
		printf("%s: %s", what, strerror(errno));
	else
		printf("%s: %ld sum %u", what, result, bytes ? sum(bytes, result) : 0);
	printf(" at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
	fflush(stdout);
}

static void use(int fd) {
	errno = 0;
	said("read", read(fd, memory + 1, 1000), memory + 1, fd);
	said("read", read(fd, memory + 3, 5000), memory + 3, fd);
	said("pread", pread(fd, memory + 1, 70000, 77), memory + 1, fd);
}

static void fill(int value, int count) { memset(memory, value, count); }

static void put(int fd) {
	fill('w', 3000);
	said("write", write(fd, memory + 1, 999), 0, fd);
	said("pwrite", pwrite(fd, memory + 1, 2001, 30001), 0, fd);
	said("pwrite past the end", pwrite(fd, memory + 1, 1500, 66000), 0, fd);
	said("read", read(fd, memory + 1, 3000), memory + 1, fd);
}

static void plain(void) { int fd = opened(O_RDWR); use(fd); put(fd); }

static void dups(void) {
	int fd = opened(O_RDWR);
	int a = dup(fd), b = dup2(fd, 100), c = dup3(fd, 101, O_CLOEXEC), d = fcntl(fd, F_DUPFD, 200);
	use(a);
	close(fd);
	use(b);
	put(c);
	close(a);
	close(b);
	use(d);
	/* Another file under a number that was used. */
	b = dup2(open("/dev/null", O_RDONLY), d);
	said("read of /dev/null", read(b, memory, 10), memory, b);
	use(c);
}

static void ranges(void) {
	int fd = opened(O_RDWR);
	use(fd);
	int kept = dup2(fd, 3);
	/* As a daemon does it, which knows nothing of other descriptors. */
	said("close_range", close_range(4, ~0U, 0), 0, kept);
	use(kept);
	put(kept);
	int other = open("/dev/zero", O_RDONLY);
	said("read of zeros", read(other, memory, 100), memory, kept);
	use(kept);
	close(other);
	closefrom(4);
	use(kept);
	for (int i = 4; i < 300; i++)
		close(i);
	use(kept);
	close(kept);
	errno = 0;
	said("read of a closed one", read(kept, memory, 10), 0, kept);
	/* Numbers that nothing uses any more are given to files again. */
	fd = opened(O_RDWR);
	use(fd);
}

static void forks(void) {
	int fd = opened(O_RDWR);
	use(fd);
	if (!fork()) {
		use(fd);
		put(fd);
		_exit(0);
	}
	wait(0);
	use(fd);
	put(fd);
}

static void vforks(void) {
	int fd = opened(O_RDWR);
	use(fd);
	if (!vfork()) {
		close(fd);
		for (int i = 3; i < 100; i++)
			close(i);
		_exit(0);
	}
	wait(0);
	use(fd);
	put(fd);
}

static void execs(void) {
	int fd = opened(O_RDWR);
	char number[20];
	use(fd);
	sprintf(number, "%d", fd);
	execl(program, program, "inherited", path, number, NULL);
}

static void sent(void) {
	int pair[2];
	char control[CMSG_SPACE(sizeof(int))], byte = 0;
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof control};
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(1);
	if (!fork()) {
		int fd = opened(O_RDWR);
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &fd, sizeof fd);
		sendmsg(pair[0], &message, 0);
		_exit(0);
	}
	if (recvmsg(pair[1], &message, 0) == 1) {
		int fd;
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
		use(fd);
		put(fd);
	}
	wait(0);
}

static void maps(void) {
	int fd = opened(O_RDWR);
	char *map = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	map[500] = 'm';
	use(fd);
	put(fd);
	printf("mapped sum %u\n", sum(map, 65536));
	map[30100] = 'm';
	said("pread", pread(fd, memory + 1, 2001, 30001), memory + 1, fd);
}

/* A POSIX lock stays while other files of the engine come and go, and goes with a close. */
static void locks(void) {
	int fd = opened(O_RDWR), other;
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
	said("lock", fcntl(fd, F_SETLK, &lock), 0, fd);
	use(fd);
	put(fd);
	/* Open in another way: another file of the engine. */
	use(opened(O_RDONLY));
	int step;
	for (step = 0; step < 2; step++) {
		if (!fork()) {
			struct flock asked = lock;
			int own = open(path, O_RDWR);
			asked.l_type = F_WRLCK;
			fcntl(own, F_GETLK, &asked);
			printf("%s\n", asked.l_type == F_UNLCK ? "it is free" : "it is locked");
			fflush(stdout);
			_exit(0);
		}
		wait(0);
		if (!step) {
			other = opened(O_RDONLY);
			close(other);
		}
	}
	/* A lock of the description ends with its last descriptor. */
	said("flock", flock(fd, LOCK_EX), 0, fd);
	use(fd);
	close(fd);
	fd = opened(O_RDWR);
	said("flock of another", flock(fd, LOCK_EX | LOCK_NB), 0, fd);
}

static void appends(void) {
	int fd = opened(O_RDWR | O_APPEND);
	fill('a', 5000);
	said("write", write(fd, memory + 1, 1001), 0, fd);
	said("pwrite", pwrite(fd, memory + 1, 2002, 5), 0, fd);
	said("write", write(fd, memory + 1, 3003), 0, fd);
	said("size", lseek(fd, 0, SEEK_END), 0, fd);
	lseek(fd, 11, SEEK_SET);
	use(fd);
}

static void set_later(void) {
	int fd = open(path, O_RDWR);
	use(fd);
	fcntl(fd, F_SETFL, direct());
	use(fd);
	put(fd);
	fcntl(fd, F_SETFL, 0);
	use(fd);
	printf("flags %d\n", fcntl(fd, F_GETFL) & O_DIRECT);
}

static void vectors(void) {
	int fd = opened(O_RDWR);
	struct iovec in[3] = {{memory + 1, 700}, {memory + 3000, 0}, {memory + 4001, 9000}};
	errno = 0;
	said("readv", readv(fd, in, 3), memory + 1, fd);
	said("preadv", preadv(fd, in, 3, 123), memory + 4001, fd);
	said("preadv2", preadv2(fd, in, 3, -1, 0), memory + 1, fd);
	said("preadv64v2", preadv64v2(fd, in, 3, 1, 0), memory + 1, fd);
	fill('v', sizeof memory);
	said("writev", writev(fd, in, 3), 0, fd);
	said("pwritev", pwritev(fd, in, 3, 20001), 0, fd);
	said("pwritev2", pwritev2(fd, in, 3, -1, 0), 0, fd);
	said("readv of nothing", readv(fd, in, 0), 0, fd);
	said("readv of less than nothing", readv(fd, in, -1), 0, fd);
	said("pread before the start", pread(fd, memory, 10, -5), 0, fd);
}

/* Another size keeps the compiler from calling the checked forms. */
static void fortified(void) {
	volatile size_t count = 1001;
	char small[2000];
	int fd = opened(O_RDWR);
	said("read", read(fd, small + 1, count), small + 1, fd);
	said("pread", pread(fd, small + 1, count, 33), small + 1, fd);
	said("pread64", pread64(fd, small + 1, count, 44), small + 1, fd);
	said("pwrite64", pwrite64(fd, small + 1, count, 55), 0, fd);
}

static void copies(void) {
	int fd = opened(O_RDWR), pair[2];
	off_t from = 101, to = 90001;
	said("copy_file_range", copy_file_range(fd, &from, fd, &to, 5001, 0), 0, fd);
	printf("offsets %lld %lld\n", (long long)from, (long long)to);
	lseek(fd, 7, SEEK_SET);
	if (pipe(pair))
		exit(1);
	said("sendfile", sendfile(pair[1], fd, NULL, 3001), 0, fd);
	said("sendfile", sendfile(pair[1], fd, &from, 3001), 0, fd);
	close(pair[1]);
	said("sent", read(pair[0], memory, 6002), memory, fd);
}

/* The standard descriptors are closed: nothing else may get their numbers. */
static void no_standard(void) {
	int fd = opened(O_RDWR), out = dup(1);
	close(0);
	close(1);
	close(2);
	memset(memory, 's', 3000);
	long got = pread(fd, memory + 1, 1000, 100) + pwrite(fd, memory + 1, 999, 66000);
	int next = open("/dev/null", O_RDWR);
	dprintf(out, "moved %ld, the next number is %d\n", got, next);
}

static __thread volatile int caught;
static void catch(int signal) { caught = signal; }

static void *reader(void *argument) {
	char own[6000];
	int fd = *(int *)argument;
	long total = 0;
	for (int i = 0; i < 200 || !caught; i++) {
		long got = pread(fd, own + 1, 3001, i % 200 * 17);
		total += i < 200 ? got : 0;
	}
	return (void *)(total + caught);
}

/* Threads, and signals while a request is served. */
static void threads(void) {
	int fd = opened(O_RDWR);
	pthread_t all[4];
	long total = 0;
	void *own;
	signal(SIGUSR1, catch);
	for (int i = 0; i < 4; i++)
		pthread_create(&all[i], 0, reader, &fd);
	for (int i = 0; i < 4; i++)
		pthread_kill(all[i], SIGUSR1);
	for (int i = 0; i < 4; i++) {
		pthread_join(all[i], &own);
		total += (long)own;
	}
	printf("%ld bytes and signals\n", total);
	use(fd);
}

/* Prints whether another process finds a lock on the file. */
static void locked(const char *what) {
	pid_t child = fork();
	if (!child) {
		struct flock lock = {.l_type = F_WRLCK};
		int fd = open(path, O_RDWR);
		_exit(fcntl(fd, F_GETLK, &lock) ? 2 : lock.l_type != F_UNLCK);
	}
	int status = 0;
	waitpid(child, &status, 0);
	printf("locked after %s: %d\n", what, WEXITSTATUS(status));
	fflush(stdout);
}

/* Calls that the kernel refuses are refused as ever, and change nothing. */
static void refusals(void) {
	int fd = opened(O_RDWR), ends[2];
	struct flock lock = {.l_type = F_WRLCK};
	struct iovec huge = {memory, (size_t)-1};
	errno = 0;
	read(fd, memory + 1, 1000);
	printf("errno after a read: %d\n", errno);
	use(fd);
	said("readv of too much", readv(fd, &huge, 1), 0, fd);
	said("pwrite below 0", pwrite(fd, memory, 65536, -1), 0, fd);
	if (pipe(ends))
		return;
	errno = 0;
	said("writev of bad segments", writev(ends[1], (void *)0x1000, 2), 0, fd);
	fcntl(fd, F_SETLK, &lock);
	use(fd);
	locked("reads");
	close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
	locked("close_range with CLOEXEC");
	said("dup2 of a closed one", dup2(900, fd), 0, fd);
	locked("a dup2 that failed");
	said("close_range backwards", close_range(10, 5, 0), 0, fd);
	use(fd);
}

static void inherited(int fd) { use(fd); put(fd); }

int main(int count, char **arguments) {
	static const struct { const char *name; void (*run)(void); } all[] = {
		{"plain", plain}, {"dup", dups}, {"close_range", ranges}, {"fork", forks},
		{"vfork", vforks}, {"exec", execs}, {"scm_rights", sent}, {"mmap", maps},
		{"locks", locks}, {"append", appends}, {"setfl", set_later}, {"vectors", vectors},
		{"fortified", fortified}, {"copies", copies}, {"no_standard", no_standard},
		{"threads", threads}, {"refusals", refusals},
	};
	if (count < 3)
		return 1;
	program = arguments[0];
	path = arguments[2];
	if (count == 4) {
		inherited(atoi(arguments[3]));
		return 0;
	}
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i].name, arguments[1])) {
			all[i].run();
			return 0;
		}
	return 1;
}
