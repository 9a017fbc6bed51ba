/*
 * The doors of the library in C: `door WAY FROM TO` copies a file with requests of 256 KiB. FROM is
 * read, or TO is written, by the library; plain calls do the other. Ends with 2 and a message for
 * an error.
 */
#include <diopter.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 256 << 10, PIECES_MAX = 64 };

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, dpt_strerror_detail());
    return 2;
}

static int failed_plainly(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 2;
}

/* Reads or writes a whole file by plain calls. */
static int plainly(const char *name, char *bytes, size_t length, int writes)
{
    int fd = open(name, writes ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY, 0644);
    if (fd < 0)
        return failed_plainly(name);
    for (size_t at = 0; at < length;) {
        ssize_t moved = writes ? write(fd, bytes + at, length - at)
                               : read(fd, bytes + at, length - at);
        if (moved <= 0)
            return failed_plainly(name);
        at += (size_t)moved;
    }
    return close(fd) == 0 ? 0 : failed_plainly(name);
}

static size_t piece_of(size_t at, size_t length)
{
    return length - at < PIECE ? length - at : PIECE;
}

static int by_calls(struct dpt_file *file, char *bytes, size_t length, int writes)
{
    for (size_t at = 0; at < length;) {
        size_t count = piece_of(at, length);
        ssize_t moved = writes ? dpt_pwrite(file, bytes + at, count, (int64_t)at)
                               : dpt_pread(file, bytes + at, count, (int64_t)at);
        if (moved < 0)
            return failed(writes ? "write" : "read");
        if (moved == 0) {
            fprintf(stderr, "no bytes moved at %zu\n", at);
            return 2;
        }
        at += (size_t)moved;
    }
    return 0;
}

static int by_queue(struct dpt_file *file, char *bytes, size_t length, int writes)
{
    struct dpt_queue_options options;
    struct dpt_queue *queue;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = getenv("DIOPTER_BACKEND");
    if (dpt_queue_create(&options, &queue) < 0)
        return failed("queue");
    int count = 0;
    for (size_t at = 0; at < length && count < PIECES_MAX; at += PIECE, count++) {
        struct dpt_request request;
        memset(&request, 0, sizeof request);
        request.file = file;
        request.op = writes ? DPT_OP_WRITE : DPT_OP_READ;
        request.offset = (int64_t)at;
        request.buf = bytes + at;
        request.length = piece_of(at, length);
        request.user_data = at;
        if (dpt_queue_submit(queue, &request, 1) != 1)
            return failed("submit");
    }
    while (count > 0) {
        struct dpt_completion done;
        int taken = dpt_queue_complete(queue, &done, 1, 1, -1);
        if (taken < 1)
            return failed("complete");
        if (done.result < 0) {
            fprintf(stderr, "%s\n", dpt_completion_detail(queue, 0));
            return 2;
        }
        size_t at = (size_t)done.user_data;
        if ((size_t)done.result != piece_of(at, length)) {
            fprintf(stderr, "bytes [%zu, %zu): %lld were moved\n", at,
                    at + piece_of(at, length), (long long)done.result);
            return 2;
        }
        count -= taken;
    }
    return dpt_queue_destroy(queue) < 0 ? failed("destroy") : 0;
}

int main(int argc, char **argv)
{
    struct stat found;
    struct dpt_file *file;
    if (argc != 4) {
        fprintf(stderr, "usage: door WAY FROM TO\n");
        return 2;
    }
    if (stat(argv[2], &found) < 0)
        return failed_plainly(argv[2]);
    size_t length = (size_t)found.st_size;
    int writes = strstr(argv[1], "-write") != NULL;
    int is_queue = strncmp(argv[1], "queue", 5) == 0;
    char *bytes = malloc(length);
    if (bytes == NULL)
        return failed_plainly("malloc");
    if (writes && plainly(argv[2], bytes, length, 0) != 0)
        return 2;
    const char *name = argv[writes ? 3 : 2];
    int flags = writes ? O_RDWR | O_CREAT | O_TRUNC : O_RDONLY;
    if (dpt_file_open(name, flags, 0644, NULL, &file) < 0)
        return failed("open");
    int status = is_queue ? by_queue(file, bytes, length, writes)
                          : by_calls(file, bytes, length, writes);
    if (status == 0 && writes && dpt_fsync(file) < 0)
        status = failed("fsync");
    if (dpt_file_close(file) < 0 && status == 0)
        status = failed("close");
    if (status == 0 && !writes)
        status = plainly(argv[3], bytes, length, 1);
    return status;
}
