/* The edges of what reads, writes and closes do, one way for each name.
 *
 *   edges NAME FILE    with DIRECT=1 in the environment the file is opened with O_DIRECT
 *
 * Prints what each call returned. The file has 64 KiB; what is printed, and what is in the file
 * afterwards, must not depend on O_DIRECT. */
#define _GNU_SOURCE
#include <aio.h>
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
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

ssize_t __read(int, void *, size_t);
ssize_t __write(int, const void *, size_t);
ssize_t __pread64(int, void *, size_t, off_t);
ssize_t __pwrite64(int, const void *, size_t, off_t);
int __close(int), __dup2(int, int);

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

/* An offset that the program can read and not write. */
static void constant_offset(void) {
	static const loff_t at = 1;
	int fd = opened(O_RDWR);
	/* The kernel refuses ranges of one file that overlap before it moves the offset. */
	said("copy from a constant offset", copy_file_range(fd, (void *)&at, fd, 0, 1001, 0), fd);
	printf("offset %ld\n", (long)at);
}

/* Prints whether another process finds a lock on the file. */
static void locked(const char *what) {
	pid_t child = fork();
	int status = 0;
	if (!child) {
		struct flock asked = {.l_type = F_WRLCK};
		_exit(fcntl(open(path, O_RDWR), F_GETLK, &asked) ? 2 : asked.l_type != F_UNLCK);
	}
	waitpid(child, &status, 0);
	printf("locked %s: %d\n", what, WEXITSTATUS(status));
	fflush(stdout);
}

static void lock(int fd) {
	struct flock whole = {.l_type = F_WRLCK};
	said("lock", fcntl(fd, F_SETLK, &whole), fd);
}

/* Gives another file to each number after that of the file, where that is possible. */
static void take_numbers(int fd) {
	int null = open("/dev/null", O_RDWR);
	for (int i = fd + 1; i < fd + 6; i++)
		if (i != null)
			dup2(null, i);
}

/* Locks of a child of fork stay when it closes or takes all numbers that it does not know. */
static void fork_locks(void) {
	for (int step = 0; step < 3; step++) {
		int there[2], back[2];
		char byte = 0;
		if (pipe(there) || pipe(back))
			return;
		int fd = opened(O_RDWR);
		use(fd);
		pid_t child = fork();
		if (!child) {
			struct flock whole = {.l_type = F_WRLCK};
			fcntl(fd, F_SETLK, &whole);
			if (step == 0)
				closefrom(fd + 1);
			else if (step == 1)
				take_numbers(fd);
			else
				for (int i = fd + 1; i < fd + 6; i++)
					close(i);
			byte = 'l';
			if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
				_exit(1);
			_exit(0);
		}
		if (read(there[0], &byte, 1) != 1)
			return;
		locked(step == 0 ? "after closefrom" : step == 1 ? "after dup2" : "after close");
		if (write(back[1], &byte, 1) != 1)
			return;
		wait(0);
		use(fd);
		close(fd);
	}
}

/* The process's own lock stays when it takes numbers that it does not know. */
static void dup2_locks(void) {
	int fd = opened(O_RDWR);
	lock(fd);
	use(fd);
	take_numbers(fd);
	locked("after dup2");
	use(fd);
	close(fd);
	locked("after close");
}

static FILE *stream;
static int main_thread, asked[2], answered[2];

/* Looks for locks in another process, each time that it is asked: fork waits for fclose. */
static void start_locker(void) {
	char byte;
	if (pipe(asked) || pipe(answered) || fork())
		return;
	close(asked[1]);
	while (read(asked[0], &byte, 1) == 1) {
		struct flock found = {.l_type = F_WRLCK};
		int fd = open(path, O_RDWR);
		fcntl(fd, F_GETLK, &found);
		close(fd);
		byte = found.l_type != F_UNLCK;
		if (write(answered[1], &byte, 1) != 1)
			break;
	}
	_exit(0);
}

static void ask_locker(const char *what) {
	char byte = 0;
	if (write(asked[1], &byte, 1) == 1 && read(answered[0], &byte, 1) == 1)
		printf("locked %s: %d\n", what, byte);
}

/* Waits until the main thread waits for the stream, and looks for the lock. */
static void *looker(void *held) {
	char name[64], line[64], wanted[16];
	flockfile(stream);
	sprintf(name, "/proc/self/task/%d/syscall", main_thread);
	sprintf(wanted, "%ld ", (long)SYS_futex);
	__atomic_store_n((int *)held, 1, __ATOMIC_RELEASE);
	for (;;) {
		int fd = open(name, O_RDONLY);
		long got = read(fd, line, sizeof line - 1);
		close(fd);
		line[got > 0 ? got : 0] = 0;
		if (got <= 0 || !strncmp(line, wanted, strlen(wanted)))
			break;
		sched_yield();
	}
	ask_locker("while fclose waits");
	funlockfile(stream);
	return 0;
}

/* A lock is held until fclose has written what the stream has buffered. */
static void fclose_locks(void) {
	static char buffer[4096] __attribute__((aligned(4096)));
	int fd = opened(O_RDWR), held = 0;
	pthread_t thread;
	start_locker();
	lock(fd);
	use(fd);
	stream = fdopen(fd, "r+");
	setvbuf(stream, buffer, _IOFBF, sizeof buffer);
	for (int i = 0; i < 4096; i++)
		putc_unlocked('f', stream);
	main_thread = getpid();
	pthread_create(&thread, 0, looker, &held);
	while (!__atomic_load_n(&held, __ATOMIC_ACQUIRE))
		sched_yield();
	printf("fclose: %d\n", fclose(stream));
	pthread_join(thread, 0);
	ask_locker("after fclose");
	fd = opened(O_RDWR);
	use(fd);
}

/* A full disk is the result of fclose. */
static void fclose_errors(void) {
	int fd = opened(O_RDWR);
	use(fd);
	FILE *full = fopen("/dev/full", "w");
	putc('f', full);
	errno = 0;
	int closed = fclose(full);
	printf("fclose: %d %s\n", closed, strerror(errno));
}

static int count_open(void) {
	DIR *all = opendir("/proc/self/fd");
	int count = 0;
	while (readdir(all))
		count++;
	closedir(all);
	return count;
}

/* What freopen closes is closed. */
static void freopens(void) {
	int fd = opened(O_RDWR);
	use(fd);
	lock(fd);
	FILE *file = fdopen(fd, "r+");
	if (!freopen("/dev/null", "r+", file))
		return;
	printf("%d are open\n", count_open());
	locked("after freopen");
	use(opened(O_RDWR));
}

/* closefrom where the kernel has no close_range. */
static void closefrom_without(void) {
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof code / sizeof *code, code};
	int fd = opened(O_RDWR);
	use(fd);
	lock(fd);
	dup2(1, 50);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program))
		return;
	closefrom(fd + 1);
	printf("50 is open: %d\n", fcntl(50, F_GETFD));
	locked("after closefrom");
	use(fd);
}

/* Other names of the same calls. */
static void names(void) {
	int fd = opened(O_RDWR);
	said("__read", __read(fd, memory + 1, 1001), fd);
	said("__pread64", __pread64(fd, memory + 1, 1001, 77), fd);
	said("__write", __write(fd, memory + 1, 1001), fd);
	said("__pwrite64", __pwrite64(fd, memory + 1, 1001, 777), fd);
	lock(fd);
	for (int i = fd + 1; i < fd + 6; i++)
		__close(i);
	locked("after __close");
	int other = __dup2(fd, 60);
	use(other);
	__close(other);
	locked("after __close of its own");
}

static void finish(struct aiocb *block, const char *what, int fd) {
	const struct aiocb *all[] = {block};
	while (aio_error(block) == EINPROGRESS)
		aio_suspend(all, 1, 0);
	said(what, aio_return(block), fd);
}

/* Calls that the kernel serves see what the engine wrote, and the other way round. */
static void passed(void) {
	int fd = opened(O_RDWR), ends[2];
	char *page = aligned_alloc(4096, 4096);
	loff_t at = 4096;
	struct aiocb block = {.aio_fildes = fd, .aio_buf = page, .aio_nbytes = 4096, .aio_offset = 4096};
	memset(memory, 'e', sizeof memory);
	if (pipe(ends))
		return;
	said("pwrite", pwrite(fd, memory + 1, 999, 5001), fd);
	said("splice", splice(fd, &at, ends[1], 0, 4096, 0), fd);
	said("read", read(ends[0], page, 4096), fd);
	printf("%d and %d\n", page[5000 - 4096], page[5001 - 4096]);
	aio_read(&block);
	finish(&block, "aio_read", fd);
	printf("%d and %d\n", page[5000 - 4096], page[5001 - 4096]);
	memset(page, 'a', 4096);
	aio_write(&block);
	finish(&block, "aio_write", fd);
	said("pread", pread(fd, memory + 1, 1001, 5001), fd);
	printf("%d\n", memory[1]);
	at = 8192;
	memset(page, 's', 4096);
	struct iovec part = {page, 4096};
	said("vmsplice", vmsplice(ends[1], &part, 1, 0), fd);
	said("splice", splice(ends[0], 0, fd, &at, 4096, 0), fd);
	said("pread", pread(fd, memory + 1, 1001, 9001), fd);
	printf("%d\n", memory[1]);
}

/* sendfile sends the datagrams that there are bytes for, and no more. */
static void datagrams(void) {
	int fd = opened(O_RDWR), ends[2];
	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends))
		return;
	off_t starts[] = {FILE_BYTES - 501, FILE_BYTES + 1, FILE_BYTES - 501};
	for (int i = 0; i < 3; i++) {
		lseek(fd, starts[i], SEEK_SET);
		said("sendfile", sendfile(ends[1], fd, i < 2 ? 0 : starts + i, 1001), fd);
		for (;;) {
			long got = recv(ends[0], memory, sizeof memory, MSG_DONTWAIT);
			said("recv", got, fd);
			if (got < 0)
				break;
		}
	}
}

/* A limit on the size of files: a write across it is short, and the next one fails with a signal. */
static volatile int signals;
static void on_limit(int signal) { signals += signal == SIGXFSZ; }

static void limited(void) {
	struct rlimit limit = {100000, 100000};
	int fd = opened(O_RDWR);
	signal(SIGXFSZ, on_limit);
	setrlimit(RLIMIT_FSIZE, &limit);
	memset(memory, 'l', sizeof memory);
	for (int i = 0; i < 6; i++) {
		said("write", write(fd, memory + 1, 30001), fd);
		printf("signals: %d\n", signals);
	}
	said("pwrite", pwrite(fd, memory + 1, 5000, 95001), fd);
	said("pwrite", pwrite(fd, memory + 1, 5000, 100001), fd);
	struct iovec parts[2] = {{memory + 1, 5000}, {memory + 9001, 100}};
	said("pwritev", pwritev(fd, parts, 2, 97003), fd);
	printf("signals: %d, size %lld\n", signals, (long long)lseek(fd, 0, SEEK_END));
}

int main(int count, char **arguments) {
	static const struct { const char *name; void (*run)(void); } all[] = {
		{"addresses", addresses}, {"fork_locks", fork_locks}, {"dup2_locks", dup2_locks},
		{"fclose_locks", fclose_locks}, {"fclose_errors", fclose_errors},
		{"freopen", freopens}, {"closefrom_without", closefrom_without}, {"names", names},
		{"passed", passed}, {"datagrams", datagrams}, {"limited", limited},
		{"constant_offset", constant_offset},
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
