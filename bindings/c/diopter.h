/*
 * diopter: direct I/O on Linux at any offset, any length and any address.
 *
 * See diopter(3) for the rules of threads, fork and signals, and for examples.
 *
 * A function that fails returns a negative errno, and dpt_strerror_detail() what failed, why, and
 * what to do. No function fails with EINTR.
 *
 * Made by cbindgen from the library's source: do not edit.
 */

#ifndef DIOPTER_H
#define DIOPTER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

// Refuses every request that would go through the page cache, in whole or in part, and a file
// without direct I/O, with -EOPNOTSUPP.
#define DPT_FILE_STRICT 1

// Sends every request through the page cache.
#define DPT_FILE_BUFFERED 2

// Locks what it writes against other processes that open the file with this flag as well.
#define DPT_FILE_SHARED_WRITERS 4

// Opens a striped file by the name of its manifest; any other file as without this flag.
#define DPT_FILE_STRIPED 8

// Opens IMAGE::/PATH, a file inside an unmounted ext2, ext3, ext4 or XFS file system; any other
// name as without this flag. Such a file keeps its size: it is read, or overwritten in place.
#define DPT_FILE_IMAGE 16

// Reads what the page cache has from there, and all else directly. Not of a file of another user,
// whose cached pages the kernel does not report, and not with DPT_FILE_STRICT.
#define DPT_FILE_ADAPTIVE 32

// For dpt_queue_options.flags: the clock is read for each request, and a dpt_completion has its
// timing.
#define DPT_QUEUE_TIMINGS 1

// Reads length bytes at offset into buf.
#define DPT_OP_READ 1

// Writes length bytes from buf at offset.
#define DPT_OP_WRITE 2

// Makes earlier writes durable, as fdatasync(2) does; offset, buf and length are 0.
#define DPT_OP_FDATASYNC 3

// Makes earlier writes durable, as fsync(2) does; offset, buf and length are 0.
#define DPT_OP_FSYNC 4

// The address of buf is not a multiple of what the device needs: bounced.
#define DPT_WHY_MISALIGNED_MEMORY 1

// The range does not begin and end on a block: bounced.
#define DPT_WHY_MISALIGNED_RANGE 2

// The range ends past the end of the file and not on a block: buffered.
#define DPT_WHY_UNALIGNED_END_OF_FILE 4

// The file is not open for reading, which a misaligned write needs: buffered.
#define DPT_WHY_WRITE_ONLY 8

// An append that does not begin and end on a block: buffered.
#define DPT_WHY_UNALIGNED_APPEND 16

// The file system has no direct I/O for this file: buffered.
#define DPT_WHY_NO_DIRECT_IO 32

// The kernel buffers direct writes on this file system: buffered.
#define DPT_WHY_KERNEL_BUFFERS 64

// DPT_FILE_BUFFERED, or the preset of the queue: buffered.
#define DPT_WHY_POLICY 128

// The page cache has the bytes, and DPT_FILE_ADAPTIVE: buffered.
#define DPT_WHY_CACHED 512

// A reason that is newer than this header.
#define DPT_WHY_OTHER 256

// Makes the write durable before it completes, as O_DSYNC does for every write.
#define DPT_REQUEST_DSYNC 1

// An open file. Its members are the library's.
struct dpt_file;

// A queue of requests. Its members are the library's.
struct dpt_queue;

// Options of dpt_file_open(). Set every byte to 0, then size, then what is wanted.
struct dpt_file_options {
  // sizeof(struct dpt_file_options)
  size_t size;
  // DPT_FILE_STRICT and so on, or 0
  uint64_t flags;
};

// Options of dpt_queue_create(). Set every byte to 0, then size, then what is wanted.
struct dpt_queue_options {
  // sizeof(struct dpt_queue_options)
  size_t size;
  // "auto", "uring", "aio" or "threads"; NULL is "auto"
  const char *backend;
  // a set of policies: "diopter", "linux-4.15" and so on; NULL is "diopter"
  const char *preset;
  // operations in the device at a time, from 1 to in_flight; 0 has the queue find out
  uint32_t depth;
  // DPT_QUEUE_TIMINGS, or 0
  uint32_t flags;
  // requests that the queue has at once, from 1 to 4096; 0 is 128
  uint32_t in_flight;
  // 0
  uint32_t reserved;
};

// A request. Set every byte to 0, then what is wanted.
struct dpt_request {
  // the open file; it may be closed once the request is submitted
  struct dpt_file *file;
  // DPT_OP_READ and so on
  uint32_t op;
  // 0, or for a write DPT_REQUEST_DSYNC
  uint32_t flags;
  // the first byte in the file
  int64_t offset;
  // the memory, which the request has until it completes
  void *buf;
  // the bytes of buf
  size_t length;
  // any value: the completion has it
  uint64_t user_data;
};

// The path that the bytes of a request took. The three counts add up to the bytes moved.
struct dpt_route {
  // bytes between buf and the device
  uint64_t direct;
  // bytes that went direct through an aligned buffer of the library
  uint64_t bounced;
  // bytes through the page cache
  uint64_t buffered;
  // DPT_WHY_MISALIGNED_MEMORY and so on: why bytes were not direct
  uint32_t why;
  // 0
  uint32_t reserved;
};

// The bytes of a request by their state. The counts add up to its length.
struct dpt_outcome {
  // bytes read or written
  uint64_t done;
  // bytes that failed; a write may have reached the device in part
  uint64_t failed;
  // bytes that were never handed to the device
  uint64_t not_tried;
  // bytes whose state is unknown: cancelled in the device, or lost with the queue's backend
  uint64_t unknown;
  // bytes from the start of the range on that are all done
  uint64_t done_prefix;
};

// When a request passed its stages, in nanoseconds after the queue accepted it; 0 for a stage
// that it never reached, and in a queue without DPT_QUEUE_TIMINGS.
struct dpt_timing {
  // its first operation was handed to the device
  uint64_t submitted;
  // its last operation came back
  uint64_t reaped;
  // its result was ready
  uint64_t finished;
};

// A finished request.
struct dpt_completion {
  // that of the request
  uint64_t user_data;
  // bytes moved, 0 for a flush, or a negative errno
  int64_t result;
  // DPT_OP_READ and so on
  uint32_t op;
  // 0
  uint32_t flags;
  struct dpt_route route;
  struct dpt_outcome outcome;
  struct dpt_timing timing;
  // 0
  uint64_t reserved[4];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a file for direct I/O at any offset, with any length, from any address.
//
// flags are those of open(2): O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC,
// O_APPEND, O_DSYNC, O_SYNC and O_NOFOLLOW; O_CLOEXEC and O_DIRECT are always in force. O_EXCL
// without O_CREAT refuses a block device that is mounted. mode is that of a file that is created.
// options may be NULL. On a file system without direct I/O all goes through the page cache, but
// with DPT_FILE_STRICT the open fails.
//
// Returns 0 and stores the file in *file, or returns a negative errno.
int dpt_file_open(const char *path,
                  int flags,
                  mode_t mode,
                  const struct dpt_file_options *options,
                  struct dpt_file **file);

// Makes a file of a descriptor that is open, of a regular file or a block device.
//
// The file is open for what the descriptor is open for, with its O_APPEND, O_DSYNC and O_SYNC. fd
// stays the caller's, and may be closed or get other flags: the file has a duplicate of it, and
// opens a second description, which needs the permissions of an open and /proc. Where that is not
// possible, a description with O_DIRECT and without O_APPEND is used as it is: then its flags must
// not change. When the file is closed, the kernel releases the POSIX locks that the process holds
// on it.
//
// Returns 0 and stores the file in *file, or returns a negative errno.
int dpt_file_from_fd(int fd, struct dpt_file **file);

// Closes a file. Does not flush it. Requests of queues that are in flight go on.
//
// No other call may use the file at the same time, nor later. Returns 0 or a negative errno.
int dpt_file_close(struct dpt_file *file);

// Returns the size of a file, or of the block device, or a negative errno.
int64_t dpt_file_size(struct dpt_file *file);

// Reads count bytes at offset, as pread(2) does. Fewer are returned only at the end of the file,
// and 0 past it.
//
// Returns the number of bytes, or a negative errno.
ssize_t dpt_pread(struct dpt_file *file, void *buf, size_t count, int64_t offset);

// Writes count bytes at offset, as pwrite(2) does, all of them; at the end of a file that was
// opened with O_APPEND. Only a striped file that runs out of space writes fewer.
//
// Returns the number of bytes, or a negative errno; part of the range may be written then.
ssize_t dpt_pwrite(struct dpt_file *file, const void *buf, size_t count, int64_t offset);

// Reads into iovcnt buffers, in order; otherwise as dpt_pread().
ssize_t dpt_preadv(struct dpt_file *file, const struct iovec *iov, int iovcnt, int64_t offset);

// Writes iovcnt buffers, in order; otherwise as dpt_pwrite().
ssize_t dpt_pwritev(struct dpt_file *file, const struct iovec *iov, int iovcnt, int64_t offset);

// Makes every write that returned, on any thread, durable with all metadata, as fsync(2) does. A
// failed flush stays: every later one of the file fails as well.
//
// Returns 0 or a negative errno.
int dpt_fsync(struct dpt_file *file);

// As dpt_fsync(), with only the metadata that is needed to read the data, as fdatasync(2) does.
int dpt_fdatasync(struct dpt_file *file);

// Sets the length of a file, as ftruncate(2) does, after every write of this process that is in
// flight.
//
// Returns 0 or a negative errno: -EBUSY if another thread does not take its completions.
int dpt_ftruncate(struct dpt_file *file, int64_t length);

// Reserves space for a range, as fallocate(2) does. The one mode is FALLOC_FL_KEEP_SIZE; any other
// fails with -EOPNOTSUPP.
//
// Returns 0 or a negative errno.
int dpt_fallocate(struct dpt_file *file, int mode, int64_t offset, int64_t length);

// Creates a queue, which takes up to 128 requests, or in_flight of its options. It belongs to the
// thread that creates it, and is destroyed on that thread, before the thread ends.
//
// options may be NULL. Returns 0 and stores the queue in *queue, or returns a negative errno.
int dpt_queue_create(const struct dpt_queue_options *options, struct dpt_queue **queue);

// Waits for the requests of a queue, and destroys it. Completions that were not taken are dropped.
//
// Returns 0, or the first error of a write or flush whose completion was not taken; the queue is
// destroyed then as well. -ENOTRECOVERABLE: requests were lost with the backend, and their memory
// must stay until the process ends. -EPERM, -EBUSY, -EBADF and -EINVAL destroy nothing. In a child
// of fork it returns 0, and leaves the requests to the parent.
int dpt_queue_destroy(struct dpt_queue *queue);

// Submits count requests, in order. Does not wait. The memory of a request belongs to it until
// dpt_queue_complete() has returned its completion.
//
// Returns how many were submitted: fewer than count if one was refused, which is the first of the
// next call then. If the first one is refused, returns a negative errno: -EAGAIN if the queue is
// full, -ENOTRECOVERABLE if it has lost its backend, -EBADF if the file is not open for this.
int dpt_queue_submit(struct dpt_queue *queue,
                     const struct dpt_request *requests,
                     unsigned int count);

// Fills completions, from the front, with up to max finished requests. Waits until there are min,
// or timeout_ns nanoseconds have passed, or nothing is in flight; a negative timeout_ns sets no
// limit. With min 0 it does not wait.
//
// Returns how many there are, or a negative errno: -ENOTRECOVERABLE if the queue has lost its
// backend and every result was returned. Requests whose memory the kernel may still use are never
// returned then, and stay in flight.
int dpt_queue_complete(struct dpt_queue *queue,
                       struct dpt_completion *completions,
                       unsigned int min,
                       unsigned int max,
                       int64_t timeout_ns);

// Cancels the requests with this user_data, best effort. Each still completes: with -ECANCELED, or
// with its result if it was too late.
//
// Returns how many there are, or a negative errno: -ENOENT if there is none.
int dpt_queue_cancel(struct dpt_queue *queue, uint64_t user_data);

// Returns the number of requests that were submitted and whose completions were not returned, or
// a negative errno.
int dpt_queue_in_flight(struct dpt_queue *queue);

// Returns an eventfd that is readable when a completion may be ready, for poll(2) and epoll(7).
// The first call makes it, before the first request, or fails with -EBUSY. The queue closes it.
//
// Call dpt_queue_complete() with min 0 when it is readable, whatever that returns, and do not read
// the descriptor: a call that returns fewer than max completions clears it. It stays readable
// while all that is left waits for writes of other threads or processes to the same blocks.
//
// Returns the descriptor, or a negative errno.
int dpt_queue_event_fd(struct dpt_queue *queue);

// Returns the name of the backend of a queue, "uring", "aio" or "threads", or NULL for an error,
// which dpt_strerror_detail() describes.
const char *dpt_queue_backend(struct dpt_queue *queue);

// Returns the message of the error of completions[index], as the last dpt_queue_complete() of this
// queue filled them: what failed, why, and what to do. It is "" for a request that succeeded, and
// valid until the next dpt_queue_complete() or dpt_queue_destroy(). Returns NULL for an error of
// this call.
const char *dpt_completion_detail(struct dpt_queue *queue, unsigned int index);

// Returns the message of the last call of this library that failed on the calling thread: what
// failed, why, and what to do. It is "" before the first failure, and valid until the next one of
// the thread.
const char *dpt_strerror_detail(void);

// Returns the version of the library, such as "0.1.0".
const char *dpt_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DIOPTER_H */
