/* Waits for signals, and prints the number of each; 15 ends it with the status 3. It does not wait
 * for ever. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
	sigset_t all;
	int got = 0;
	sigfillset(&all);
	sigdelset(&all, SIGALRM);
	alarm(20);
	sigprocmask(SIG_BLOCK, &all, 0);
	puts("ready");
	fflush(stdout);
	while (got != SIGTERM) {
		if (sigwait(&all, &got))
			return 1;
		printf("%d\n", got);
		fflush(stdout);
	}
	return 3;
}
