/*
 * `launcher NUMBER ERRNO PROGRAM...` runs a program for which the system call of this number fails
 * with this error from its first one on: a filter of four instructions, without a supervisor.
 * Built as a library with -DFROM_MAIN, and preloaded, it reads both from the variable REFUSED and
 * sets the filter when the loader is done, right before `main`, or when a program loads it.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int refuse(unsigned number, unsigned error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    /* For the threads that are there already, too: Python loads the library when it runs. */
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0
               ? 0 : -1;
}

#ifdef FROM_MAIN
__attribute__((constructor)) static void from_main(void)
{
    unsigned number, error;
    const char *refused = getenv("REFUSED");
    if (refused != NULL && sscanf(refused, "%u %u", &number, &error) == 2 &&
        refuse(number, error) != 0)
        _exit(99);
}
#else
int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: launcher NUMBER ERRNO PROGRAM...\n");
        return 99;
    }
    if (refuse((unsigned)atoi(argv[1]), (unsigned)atoi(argv[2])) != 0) {
        fprintf(stderr, "launcher: no filter: %s\n", strerror(errno));
        return 99;
    }
    execvp(argv[3], argv + 3);
    fprintf(stderr, "launcher: %s: %s\n", argv[3], strerror(errno));
    return 99;
}
#endif
