/* A process at its limits, and what exec keeps, one way for each name.
 *
 *   limits NAME FILE    with DIRECT=1 in the environment the file is opened with O_DIRECT
 *
 * What is printed must not depend on O_DIRECT: so not what the calls returned. The file has 64 KiB. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGE = 3 << 20, STACK = 8192, BELOW = 1 << 16 };

static const char *path, *program;
static char memory[LARGE];

static int opened(int flags) {
	int fd = open(path, flags | (getenv("DIRECT") ? O_DIRECT : 0), 0644);
	if (fd < 0)
		printf("open: %s\n", strerror(errno));
	return fd;
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

static void after_exec(void) { locked("after exec"); }

/* Locks that are taken before and after a request stay over exec, which here has 9 words, so that
 * some are on the stack. */
static void exec_locks(void) {
	struct flock whole = {.l_type = F_WRLCK};
	int fd = opened(O_RDWR);
	pread(fd, memory + 1, 1000, 7);
	if (fcntl(fd, F_SETLK, &whole))
		printf("lock: %s\n", strerror(errno));
	pread(fd, memory + 1, 1000, 7);
	execl("/nowhere", "nowhere", (char *)0);
	locked("after an exec that failed");
	execl(program, program, "after_exec", path, "a", "b", "c", "d", "e", "f", (char *)0);
}

/* A child of fork that executes a program gets no descriptor that it did not have. */
static void exec_of_a_child(void) {
	struct flock whole = {.l_type = F_WRLCK};
	int fd = opened(O_RDWR | O_CLOEXEC);
	fcntl(fd, F_SETLK, &whole);
	pread(fd, memory + 1, 1000, 7);
	if (!fork())
		execlp("ls", "ls", "/proc/self/fd", (char *)0);
	wait(0);
	locked("after a child");
}

/* A process that has no memory goes on. */
static void no_memory(void) {
	struct rlimit limit = {0, RLIM_INFINITY};
	long pages = 0;
	int fd = opened(O_RDWR), to = open("/dev/null", O_WRONLY);
	FILE *about = fopen("/proc/self/statm", "r");
	fscanf(about, "%ld", &pages);
	fclose(about);
	fflush(stdout);
	limit.rlim_cur = pages * sysconf(_SC_PAGESIZE) + (100 << 10);
	setrlimit(RLIMIT_AS, &limit);
	for (size_t size = 1 << 16; size >= 16; size /= 2)
		while (malloc(size))
			;
	off_t offset = 1;
	pread(fd, memory + 1, LARGE - 1, 13);
	pwrite(fd, memory + 1, 700, 13);
	sendfile(to, fd, &offset, 6000);
	close(fd);
	write(1, "alive\n", 6);
}

static void handle(int signal) {
	int fd = opened(O_RDWR);
	(void)signal;
	pread(fd, memory + 1, 777, 3);
	pwrite(fd, memory + 1, 777, 3);
	close(fd);
}

/* A handler on an alternate stack of the usual size writes nothing below it. */
static void alternate_stack(void) {
	unsigned char *all = aligned_alloc(4096, BELOW + STACK);
	stack_t stack = {.ss_sp = all + BELOW, .ss_size = STACK};
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
	int changed = 0;
	memset(all, 0xA5, BELOW + STACK);
	sigaltstack(&stack, 0);
	sigaction(SIGUSR1, &action, 0);
	raise(SIGUSR1);
	for (int i = 0; i < BELOW; i++)
		changed += all[i] != 0xA5;
	printf("changed below the stack: %d\n", changed);
}

static volatile sig_atomic_t breaks;
static void on_break(int signal) { breaks += signal == SIGIO; }

/* The program's own lease stays. */
static void leased(void) {
	int fd = opened(O_RDWR);
	signal(SIGIO, on_break);
	if (fcntl(fd, F_SETLEASE, F_WRLCK))
		printf("lease: %s\n", strerror(errno));
	pread(fd, memory + 1, 1000, 7);
	printf("breaks: %d, lease: %d\n", (int)breaks, fcntl(fd, F_GETLEASE) == F_WRLCK);
}

/* With one number left an append does not fail for want of another. */
static void one_number(void) {
	int fd = opened(O_RDWR | O_APPEND), top = open("/dev/null", O_RDONLY);
	struct rlimit limit = {top + 1, top + 1};
	close(top);
	setrlimit(RLIMIT_NOFILE, &limit);
	errno = 0;
	write(fd, memory + 1, 1000);
	printf("no numbers: %d\n", errno == EMFILE);
	ftruncate(fd, 1 << 16);
}

int main(int count, char **arguments) {
	static const struct { const char *name; void (*run)(void); } all[] = {
		{"exec_locks", exec_locks}, {"after_exec", after_exec},
		{"exec_of_a_child", exec_of_a_child}, {"no_memory", no_memory},
		{"alternate_stack", alternate_stack}, {"leased", leased}, {"one_number", one_number},
	};
	if (count < 3)
		return 1;
	program = arguments[0];
	path = arguments[2];
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i].name, arguments[1])) {
			all[i].run();
			return 0;
		}
	return 1;
}
