/* What the test programs share: a check that names its line, and the files of a test. */
#ifndef CHECK_H
#define CHECK_H

#include <diopter.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,            \
                    dpt_strerror_detail());                                               \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

/* A call that fails with this errno, and says why. */
#define REFUSED(call, number)                                                             \
    do {                                                                                  \
        long long refused_ = (long long)(call);                                           \
        if (refused_ != -(number) || dpt_strerror_detail()[0] == '\0') {                  \
            fprintf(stderr, "%s:%d: %s is %lld, not %d: %s\n", __FILE__, __LINE__, #call, \
                    refused_, -(number), dpt_strerror_detail());                          \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

enum { SECOND = 1000000000 };

static inline struct dpt_file *open_file(const char *path, int flags, uint64_t more)
{
    struct dpt_file_options options;
    struct dpt_file *file = NULL;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.flags = more;
    CHECK(dpt_file_open(path, flags, 0644, &options, &file) == 0);
    return file;
}

/* An open file of this many bytes, each of them its offset modulo 251. */
static inline struct dpt_file *make_file(const char *path, size_t length)
{
    struct dpt_file *file = open_file(path, O_RDWR | O_CREAT | O_TRUNC, 0);
    unsigned char *bytes = malloc(length);
    CHECK(bytes != NULL);
    for (size_t at = 0; at < length; at++)
        bytes[at] = (unsigned char)(at % 251);
    CHECK(dpt_pwrite(file, bytes, length, 0) == (ssize_t)length);
    CHECK(dpt_fsync(file) == 0);
    free(bytes);
    return file;
}

static inline int is_pattern(const unsigned char *bytes, size_t length, size_t offset)
{
    for (size_t at = 0; at < length; at++)
        if (bytes[at] != (offset + at) % 251)
            return 0;
    return 1;
}

/* NULL or "auto" is any backend. */
static inline struct dpt_queue *make_queue(const char *backend)
{
    struct dpt_queue_options options;
    struct dpt_queue *queue = NULL;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = backend;
    CHECK(dpt_queue_create(&options, &queue) == 0);
    return queue;
}

static inline struct dpt_request request_of(struct dpt_file *file, uint32_t op, int64_t offset,
                                            void *buf, size_t length, uint64_t user_data)
{
    struct dpt_request request;
    memset(&request, 0, sizeof request);
    request.file = file;
    request.op = op;
    request.offset = offset;
    request.buf = buf;
    request.length = length;
    request.user_data = user_data;
    return request;
}

#endif
