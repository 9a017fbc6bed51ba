/* What other threads do while the engine waits for the kernel, one way for each name.
 *
 *   held NAME FILE    with DIRECT=1 in the environment the file is opened with O_DIRECT
 *
 * A filter holds the calls of one thread. During the first of them another thread makes its own
 * calls, which must end. Prints how many were held, if the others were stuck, and what they saw. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STUCK_AFTER_MS = 20000, WRITTEN = 12 << 20, PIECE = 3001 };

static const char *path;
static int file, other, ends[2], done[2];

/* A system call that no library sees: under a filter that it sees there is no advice. */
static long raw(long number, long a, long b, long c) {
#if defined __x86_64__
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return result;
#else
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
		      x2 __asm__("x2") = c;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	return x0;
#endif
}

/* Has the kernel ask here before each such call. */
static int listener_of(const int *numbers, int count) {
	struct sock_filter code[16] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	int at = 1;
	for (int i = 0; i < count; i++)
		code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], count - i, 0);
	code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
	struct sock_fprog program = {at, code};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
		   (long)&program);
}

/* Small writes: under --all there is advice on them, a window at a time. */
static void *writer(void *unused) {
	static char piece[PIECE];
	int fd = open(path, O_RDWR | O_TRUNC);
	for (int i = 0; i < WRITTEN / PIECE; i++)
		if (write(fd, piece, PIECE) != PIECE)
			printf("write: %s\n", strerror(errno));
	close(fd);
	close(done[1]);
	return unused;
}

/* Calls on other files, which need not wait for that one. */
static void *others_calls(void *unused) {
	char bytes[5000];
	int null = open("/dev/null", O_RDWR), copy = dup2(null, 200);
	if (read(other, bytes, sizeof bytes) != sizeof bytes || copy != 200)
		printf("others: %s\n", strerror(errno));
	close(null);
	close(copy);
	close_range(200, 210, 0);
	close(ends[1]);
	return unused;
}

/* A read that ends with the file: the position was taken, and is given back in part. */
static void *reader(void *unused) {
	char bytes[5000];
	read(file, bytes, sizeof bytes);
	close(done[1]);
	return unused;
}

/* Gives the number of the reader's file to another. */
static void *taker(void *unused) {
	close(file);
	other = fcntl(other, F_DUPFD, file);
	if (other != file)
		printf("another number\n");
	lseek(other, 1000, SEEK_SET);
	close(ends[1]);
	return unused;
}

/* Answers for the held calls until the thread is done. During the first, another thread runs. */
static void answer(int listener, void *(*beside)(void *)) {
	struct pollfd both[2] = {{listener, POLLIN}, {done[0], POLLIN}};
	int held = 0, is_stuck = 0;
	pthread_t thread;
	for (;;) {
		poll(both, 2, -1);
		if (!(both[0].revents & POLLIN))
			break;
		struct seccomp_notif asked = {0};
		struct seccomp_notif_resp reply = {0};
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked))
			break;
		if (!held++) {
			struct pollfd end = {ends[0], POLLIN};
			pthread_create(&thread, 0, beside, 0);
			is_stuck = poll(&end, 1, STUCK_AFTER_MS) == 0;
		}
		reply.id = asked.id;
		reply.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
	}
	if (held)
		pthread_join(thread, 0);
	printf("held: %d, stuck: %d\n", held > 0, is_stuck);
}

int main(int count, char **arguments) {
	static const int advice[] = {SYS_fadvise64};
	static const int reads[] = {SYS_pread64, SYS_preadv, SYS_preadv2};
	if (count != 3 || pipe(ends) || pipe(done))
		return 1;
	path = arguments[2];
	int is_read = !strcmp(arguments[1], "position");
	pthread_t thread;
	other = memfd_create("other", 0);
	ftruncate(other, 1 << 16);
	file = open(path, O_RDWR | (getenv("DIRECT") ? O_DIRECT : 0));
	lseek(file, (1 << 16) - 99, SEEK_SET);
	int listener = is_read ? listener_of(reads, 3) : listener_of(advice, 1);
	if (listener < 0) {
		printf("seccomp: %s\n", strerror(errno));
		return 77;
	}
	pthread_create(&thread, 0, is_read ? reader : writer, 0);
	answer(listener, is_read ? taker : others_calls);
	pthread_join(thread, 0);
	if (is_read)
		printf("position: %lld\n", (long long)lseek(other, 0, SEEK_CUR));
	return 0;
}
