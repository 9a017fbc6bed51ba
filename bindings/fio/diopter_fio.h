/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The functions that engine.c calls: a private interface of one library, declared again in
 * src/exports.rs. It has none of fio's types.
 */
#ifndef DIOPTER_FIO_H
#define DIOPTER_FIO_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of a message, the terminating zero included. */
#define DIOPTER_FIO_MESSAGE_BYTES 512

/* An engine of diopter, the memory of its requests, and the requests in flight. */
struct diopter_fio_job;

/* An open file. */
struct diopter_fio_file;

/* The options of a job. */
struct diopter_fio_options {
	const char *backend;
	const char *preset;
	int registers;		/* memory and files, where the kernel permits it */
	unsigned int in_flight;	/* requests of the engine at once: iodepth= */
};

/* How a file is opened. */
struct diopter_fio_mode {
	int writes;
	int creates;
	int strict;
	int dsync;
	int sync;
	uint64_t size_wanted;	/* of a striped file that is written: it is extended to this */
};

enum diopter_fio_kind {
	DIOPTER_FIO_PLAIN,	/* fio finds its size, and makes it longer */
	DIOPTER_FIO_SPECIAL,	/* a striped file, or a file in an image */
};

enum diopter_fio_op {
	DIOPTER_FIO_READ,
	DIOPTER_FIO_WRITE,
	DIOPTER_FIO_SYNC,
	DIOPTER_FIO_DATASYNC,
};

/* The result of a request. */
struct diopter_fio_done {
	void *tag;		/* as it was started with */
	uint64_t bytes;		/* moved */
	int error;		/* an errno, or 0 */
};

/* What diopter_fio_start returns besides an errno. */
#define DIOPTER_FIO_STARTED 0
#define DIOPTER_FIO_BUSY (-1)

/*
 * Functions that return int return 0 or an errno, unless they say otherwise. `message` has room for
 * DIOPTER_FIO_MESSAGE_BYTES; it is set if an errno is returned. A job and its files are used from
 * the thread that made the job.
 */
int diopter_fio_job_new(const struct diopter_fio_options *options, struct diopter_fio_job **job,
			char *message);
void diopter_fio_job_free(struct diopter_fio_job *job);

/* The memory of every request of the job, or NULL. */
void *diopter_fio_memory_new(struct diopter_fio_job *job, size_t bytes, char *message);
/* Waits for what is in flight. Memory that the kernel may still use stays allocated. */
void diopter_fio_memory_free(struct diopter_fio_job *job);

int diopter_fio_file_look(const char *name, const struct diopter_fio_mode *mode,
			  enum diopter_fio_kind *kind, uint64_t *size, char *message);
/*
 * `descriptor` is the caller's to close. `job` is NULL here and in the close when fio opens a file
 * before it starts the job.
 */
int diopter_fio_file_open(struct diopter_fio_job *job, const char *name,
			  const struct diopter_fio_mode *mode, struct diopter_fio_file **file,
			  int *descriptor, char *message);
/* `flushes`: the file is flushed first. The file is closed in any case. */
int diopter_fio_file_close(struct diopter_fio_job *job, struct diopter_fio_file *file, int flushes);
int diopter_fio_file_drop_cache(const struct diopter_fio_file *file);

/* Returns DIOPTER_FIO_STARTED, DIOPTER_FIO_BUSY or an errno. */
int diopter_fio_start(struct diopter_fio_job *job, const struct diopter_fio_file *file,
		      enum diopter_fio_op op, uint64_t offset, void *memory, size_t length,
		      void *tag);
void diopter_fio_submit(struct diopter_fio_job *job);
/* Waits for `least` results. Returns how many there are, at most `most`, or a negative errno. */
int diopter_fio_reap(struct diopter_fio_job *job, unsigned int least, unsigned int most);
/* One of those that the last call of diopter_fio_reap counted; another index ends the process. */
void diopter_fio_result(const struct diopter_fio_job *job, unsigned int index,
			struct diopter_fio_done *done);
/* Returns 1 and the message of the first request that failed, once. */
int diopter_fio_first_failure(struct diopter_fio_job *job, char *message);

#endif
