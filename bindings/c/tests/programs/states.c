/*
 * Wrong threads, children of fork, signal handlers, cancelled requests. The first argument is the
 * backend, if there is one.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static struct dpt_queue *queue;
static struct dpt_file *file;
static const char *backend;
static volatile sig_atomic_t in_handler;

/* Every call of a queue but its destruction. */
static void each_call(int number)
{
    struct dpt_completion done;
    struct dpt_request request = request_of(file, DPT_OP_FSYNC, 0, NULL, 0, 0);
    REFUSED(dpt_queue_submit(queue, &request, 1), number);
    REFUSED(dpt_queue_complete(queue, &done, 0, 1, 0), number);
    REFUSED(dpt_queue_cancel(queue, 0), number);
    REFUSED(dpt_queue_in_flight(queue), number);
    REFUSED(dpt_queue_event_fd(queue), number);
    CHECK(dpt_queue_backend(queue) == NULL);
    CHECK(dpt_completion_detail(queue, 0) == NULL);
}

static void *other_thread(void *unused)
{
    unsigned char byte;
    each_call(EPERM);
    REFUSED(dpt_queue_destroy(queue), EPERM);
    /* Files are for every thread. */
    CHECK(dpt_pread(file, &byte, 1, 7) == 1 && byte == 7);
    return unused;
}

static void child(void)
{
    unsigned char bytes[100];
    struct dpt_completion done;
    each_call(EOWNERDEAD);
    CHECK(dpt_queue_destroy(queue) == 0);
    CHECK(dpt_pread(file, bytes, 100, 5) == 100 && is_pattern(bytes, 100, 5));
    struct dpt_queue *own = make_queue(backend);
    struct dpt_request request = request_of(file, DPT_OP_READ, 9, bytes, 100, 1);
    CHECK(dpt_queue_submit(own, &request, 1) == 1);
    CHECK(dpt_queue_complete(own, &done, 1, 1, -1) == 1 && done.result == 100);
    CHECK(is_pattern(bytes, 100, 9));
    CHECK(dpt_queue_destroy(own) == 0);
    CHECK(dpt_file_close(file) == 0);
}

static void forked(void)
{
    static unsigned char bytes[20][30000];
    for (int at = 0; at < 20; at++) {
        struct dpt_request request =
            request_of(file, DPT_OP_READ, at * 30000 + 1, bytes[at], 30000, (uint64_t)at);
        CHECK(dpt_queue_submit(queue, &request, 1) == 1);
    }
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        child();
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    struct dpt_completion done[20];
    CHECK(dpt_queue_complete(queue, done, 20, 20, -1) == 20);
    for (int at = 0; at < 20; at++)
        CHECK(done[at].result == 30000 && is_pattern(bytes[at], 30000, (size_t)at * 30000 + 1));
}

struct holder {
    pthread_barrier_t holds, ends;
};

/* Has a write in flight, and does not take its completion until the other thread says so. */
static void *hold(void *argument)
{
    struct holder *holder = argument;
    struct dpt_queue *own = make_queue(backend);
    struct dpt_completion done;
    char bytes[100] = {0};
    struct dpt_request request = request_of(file, DPT_OP_WRITE, 5, bytes, sizeof bytes, 1);
    CHECK(dpt_queue_submit(own, &request, 1) == 1);
    pthread_barrier_wait(&holder->holds);
    pthread_barrier_wait(&holder->ends);
    CHECK(dpt_queue_complete(own, &done, 1, 1, -1) == 1 && done.result == sizeof bytes);
    CHECK(dpt_queue_destroy(own) == 0);
    return NULL;
}

static void on_alarm(int number)
{
    /* The last signal may come after the call that it was to interrupt. */
    int result = dpt_queue_in_flight(queue);
    (void)number;
    if (in_handler != -EBUSY)
        in_handler = result;
}

/* A write that waits for another thread's: signals do not end it, a timeout and a cancel do. */
static void waiting(void)
{
    struct holder holder;
    struct dpt_completion done;
    char bytes[100] = {0};
    pthread_t thread;
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    CHECK(pthread_barrier_init(&holder.holds, NULL, 2) == 0);
    CHECK(pthread_barrier_init(&holder.ends, NULL, 2) == 0);
    CHECK(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, hold, &holder) == 0);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &alarms, NULL) == 0);
    pthread_barrier_wait(&holder.holds);

    struct dpt_request requests[3] = {
        request_of(file, DPT_OP_WRITE, 50, bytes, sizeof bytes, 1),
        request_of(file, DPT_OP_WRITE, 60, bytes, sizeof bytes, 2),
        request_of(file, DPT_OP_WRITE, 70, bytes, sizeof bytes, 2),
    };
    CHECK(dpt_queue_submit(queue, requests, 3) == 3);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval soon = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    CHECK(dpt_queue_complete(queue, &done, 1, 1, SECOND / 5) == 0);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(in_handler == -EBUSY);

    CHECK(dpt_queue_cancel(queue, 2) == 2);
    for (int left = 2; left > 0; left--) {
        CHECK(dpt_queue_complete(queue, &done, 1, 1, -1) == 1);
        CHECK(done.user_data == 2 && done.result == -ECANCELED);
        CHECK(done.outcome.not_tried == sizeof bytes && done.outcome.done == 0);
        CHECK(strstr(dpt_completion_detail(queue, 0), "ECANCELED") != NULL);
    }
    REFUSED(dpt_queue_cancel(queue, 2), ENOENT);
    pthread_barrier_wait(&holder.ends);
    CHECK(dpt_queue_complete(queue, &done, 1, 1, -1) == 1);
    CHECK(done.user_data == 1 && done.result == sizeof bytes);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A write that the limit on the size of files cuts, and whose completion is not taken. */
static void unseen(void)
{
    enum { LENGTH = 16384 };
    struct rlimit before;
    unsigned char *bytes = calloc(1, LENGTH);
    CHECK(bytes != NULL && getrlimit(RLIMIT_FSIZE, &before) == 0);
    struct rlimit limit = {LENGTH / 2, before.rlim_max};
    struct dpt_file *cut = open_file("cut", O_RDWR | O_CREAT | O_TRUNC, 0);
    struct dpt_queue *own = make_queue(backend);
    struct dpt_request request = request_of(cut, DPT_OP_WRITE, 0, bytes, LENGTH, 1);
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(dpt_queue_submit(own, &request, 1) == 1);
    REFUSED(dpt_queue_destroy(own), EFBIG);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(dpt_file_close(cut) == 0);
    free(bytes);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    backend = argc > 1 ? argv[1] : NULL;
    file = make_file("data", 1 << 20);
    queue = make_queue(backend);
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    forked();
    waiting();
    unseen();
    CHECK(dpt_queue_destroy(queue) == 0);
    CHECK(dpt_file_close(file) == 0);
    return 0;
}
