/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fio's side of the engine: its hooks and its options. Everything else is behind diopter_fio.h.
 *
 * This file is compiled against the headers of the fio that loads it. They are under GPL-2.0, and
 * so is the result; nothing of fio is copied here. Of an io_u only fields before its first
 * configured one are used, and none is allocated.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fio.h"
#include "optgroup.h"

#include "diopter_fio.h"

struct diopter_options {
	void *pad;		/* fio wants no option at offset 0 */
	char *backend;
	char *preset;
	unsigned int strict;
	unsigned int registers;
};

#define OPTION(option, field, kind, value, text)				\
	{									\
		.name = option,							\
		.lname = option,						\
		.type = kind,							\
		.off1 = offsetof(struct diopter_options, field),		\
		.def = value,							\
		.help = text,							\
		.category = FIO_OPT_C_ENGINE,					\
		.group = FIO_OPT_G_INVALID,					\
	}

static struct fio_option options[] = {
	OPTION("backend", backend, FIO_OPT_STR_STORE, "auto", "auto, uring, aio or threads"),
	OPTION("preset", preset, FIO_OPT_STR_STORE, "diopter",
	       "Policies of a system, such as linux-7.0"),
	OPTION("strict", strict, FIO_OPT_BOOL, "0",
	       "Refuse requests that would go through the page cache"),
	OPTION("register", registers, FIO_OPT_BOOL, "1",
	       "Register memory and files with the kernel, where it permits that"),
	{ .name = NULL },
};

/* What a job keeps in td->io_ops_data. */
struct diopter_data {
	struct diopter_fio_job *job;
	unsigned int queued_count;
	struct io_u *queued[];		/* iodepth */
};

extern struct ioengine_ops ioengine;

/* Exported by fio 3.33 and later, not by every build of it. */
extern const char fio_version_string[] __attribute__((weak));

/* Prints a message once a process, however many jobs have a reason for it. */
static void print_once(int *printed, const char *message)
{
	if (!*printed)
		log_err("diopter: %s\n", message);
	*printed = 1;
}

/*
 * The fields of thread_data that this file uses lie before or at io_ops. If that one has the right
 * value, all of them are where the headers say.
 */
static int check_headers(struct thread_data *td)
{
	static int printed;
	const char *running = fio_version_string;

	if (td->io_ops == &ioengine && (!running || !strcmp(running, DIOPTER_FIO_VERSION)))
		return 0;
	print_once(&printed, "the engine was built with the headers of another fio, "
		   DIOPTER_FIO_VERSION "; build it again with `cargo xtask fio`");
	return EINVAL;
}

static int check_options(struct thread_data *td)
{
	static int printed_direct, printed_trim;

	if (!td->o.odirect) {
		print_once(&printed_direct, "direct=0 is not possible: the engine does direct I/O; "
			   "set direct=1");
		return EINVAL;
	}
	if (td_trim(td)) {
		print_once(&printed_trim, "rw=trim is not possible: the engine reads, writes and "
			   "flushes; take another engine for trims");
		return EOPNOTSUPP;
	}
	return 0;
}

/* NULL if the job was not made, or is gone. */
static struct diopter_fio_job *job_of(struct thread_data *td)
{
	struct diopter_data *data = td->io_ops_data;

	return data ? data->job : NULL;
}

static int fail(struct thread_data *td, int error, const char *message)
{
	log_err("diopter: %s\n", message);
	td_verror(td, error, "diopter");
	return error;
}

static struct diopter_fio_mode mode_of(struct thread_data *td, struct fio_file *f)
{
	struct diopter_options *o = td->eo;
	int flags = td->o.sync_io;
	struct diopter_fio_mode mode = {
		.writes = td_write(td) && !read_only,
		.strict = o->strict,
		.sync = (flags & O_SYNC) == O_SYNC,
		.dsync = (flags & O_DSYNC) == O_DSYNC,
	};

	mode.creates = mode.writes && f->filetype == FIO_TYPE_FILE && td->o.allow_create;
	if (mode.writes && td->o.nr_files)
		mode.size_wanted = td->o.start_offset + (td->o.file_size_low ? td->o.file_size_low
						: td->o.size / td->o.nr_files);
	return mode;
}

static int diopter_get_file_size(struct thread_data *td, struct fio_file *f)
{
	char message[DIOPTER_FIO_MESSAGE_BYTES];
	struct diopter_fio_mode mode;
	enum diopter_fio_kind kind;
	uint64_t size;
	int error;

	if (fio_file_size_known(f))
		return 0;
	error = check_headers(td);
	if (!error)
		error = check_options(td);
	if (error) {
		td_verror(td, error, "diopter");
		return error;
	}
	mode = mode_of(td, f);
	error = diopter_fio_file_look(f->file_name, &mode, &kind, &size, message);
	if (error)
		return fail(td, error, message);
	if (kind == DIOPTER_FIO_PLAIN)
		return generic_get_file_size(td, f);
	/* fio does not make a block device longer by itself, stays in its size, and keeps it. */
	f->filetype = FIO_TYPE_BLOCK;
	f->real_file_size = size;
	fio_file_set_size_known(f);
	return 0;
}

static int diopter_init(struct thread_data *td)
{
	struct diopter_options *o = td->eo;
	char message[DIOPTER_FIO_MESSAGE_BYTES];
	struct diopter_data *data;
	struct diopter_fio_options wanted;
	int error;

	error = check_headers(td);
	if (!error)
		error = check_options(td);
	if (error)
		return error;
	wanted = (struct diopter_fio_options) {
		.backend = o->backend,
		.preset = o->preset,
		.registers = o->registers,
		.in_flight = td->o.iodepth,
	};
	data = calloc(1, sizeof(*data) + td->o.iodepth * sizeof(data->queued[0]));
	if (!data)
		return fail(td, ENOMEM, "no memory for the job; lower iodepth=");
	error = diopter_fio_job_new(&wanted, &data->job, message);
	if (error) {
		free(data);
		return fail(td, error, message);
	}
	td->io_ops_data = data;
	return 0;
}

static void diopter_cleanup(struct thread_data *td)
{
	struct diopter_data *data = td->io_ops_data;

	if (data)
		diopter_fio_job_free(data->job);
	free(data);
	td->io_ops_data = NULL;
}

static int diopter_iomem_alloc(struct thread_data *td, size_t bytes)
{
	char message[DIOPTER_FIO_MESSAGE_BYTES];

	td->orig_buffer = diopter_fio_memory_new(job_of(td), bytes, message);
	if (td->orig_buffer)
		return 0;
	log_err("diopter: %s\n", message);
	return ENOMEM;
}

static void diopter_iomem_free(struct thread_data *td)
{
	if (job_of(td))
		diopter_fio_memory_free(job_of(td));
	td->orig_buffer = NULL;
}

static int diopter_open_file(struct thread_data *td, struct fio_file *f)
{
	char message[DIOPTER_FIO_MESSAGE_BYTES];
	struct diopter_fio_mode mode = mode_of(td, f);
	struct diopter_fio_file *file;
	int error;

	error = diopter_fio_file_open(job_of(td), f->file_name, &mode, &file, &f->fd, message);
	if (error)
		return fail(td, error, message);
	f->engine_data = file;
	return 0;
}

static int diopter_close_file(struct thread_data *td, struct fio_file *f)
{
	/* fio flushes its descriptor, which is one of several if the file is striped. */
	int flushes = td->o.fsync_on_close && td_write(td);
	int error = 0;

	if (f->engine_data)
		error = diopter_fio_file_close(job_of(td), f->engine_data, flushes);
	f->engine_data = NULL;
	if (close(f->fd) < 0 && !error)
		error = errno;
	f->fd = -1;
	return error;
}

static int diopter_invalidate(struct thread_data *td, struct fio_file *f)
{
	/* fio has opened the file itself while it makes it longer. */
	if (!f->engine_data)
		return -posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
	return -diopter_fio_file_drop_cache(f->engine_data);
}

static void print_first_failure(struct thread_data *td)
{
	char message[DIOPTER_FIO_MESSAGE_BYTES];

	if (diopter_fio_first_failure(job_of(td), message))
		log_err("diopter: %s\n", message);
}

static enum fio_q_status diopter_queue(struct thread_data *td, struct io_u *io_u)
{
	struct diopter_data *data = td->io_ops_data;
	enum diopter_fio_op op;
	int started;

	fio_ro_check(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		op = DIOPTER_FIO_READ;
		break;
	case DDIR_WRITE:
		op = DIOPTER_FIO_WRITE;
		break;
	case DDIR_SYNC:
		op = DIOPTER_FIO_SYNC;
		break;
	case DDIR_DATASYNC:
		op = DIOPTER_FIO_DATASYNC;
		break;
	default:
		io_u->error = EOPNOTSUPP;
		return FIO_Q_COMPLETED;
	}
	if (data->queued_count == td->o.iodepth)
		return FIO_Q_BUSY;
	started = diopter_fio_start(data->job, io_u->file->engine_data, op, io_u->offset,
				    io_u->xfer_buf, io_u->xfer_buflen, io_u);
	if (started == DIOPTER_FIO_BUSY)
		return FIO_Q_BUSY;
	if (started != DIOPTER_FIO_STARTED) {
		io_u->error = started;
		print_first_failure(td);
		return FIO_Q_COMPLETED;
	}
	data->queued[data->queued_count++] = io_u;
	return FIO_Q_QUEUED;
}

/* Notes for fio's statistics when the queued requests were submitted. */
static void note_submitted(struct thread_data *td, struct diopter_data *data)
{
	struct timespec now;
	unsigned int i;

	io_u_mark_submit(td, data->queued_count);
	if (fio_fill_issue_time(td)) {
		fio_gettime(&now, NULL);
		for (i = 0; i < data->queued_count; i++) {
			data->queued[i]->issue_time = now;
			io_u_queued(td, data->queued[i]);
		}
		if (td->o.read_iolog_file)
			td->last_issue = now;
	}
	data->queued_count = 0;
}

static int diopter_commit(struct thread_data *td)
{
	struct diopter_data *data = td->io_ops_data;

	if (data->queued_count) {
		diopter_fio_submit(data->job);
		note_submitted(td, data);
	}
	return 0;
}

static int diopter_getevents(struct thread_data *td, unsigned int min, unsigned int max,
			     const struct timespec *t)
{
	unsigned int least = td->o.iodepth_batch_complete_min ? min : 0;

	return diopter_fio_reap(job_of(td), least, max);
}

static struct io_u *diopter_event(struct thread_data *td, int event)
{
	struct diopter_fio_done done;
	struct io_u *io_u;

	diopter_fio_result(job_of(td), event, &done);
	io_u = done.tag;
	io_u->error = done.error;
	if (done.error)
		print_first_failure(td);
	else if (ddir_rw(io_u->ddir))
		io_u->resid = io_u->xfer_buflen - done.bytes;
	return io_u;
}

struct ioengine_ops ioengine = {
	.name = "diopter",
	.version = FIO_IOOPS_VERSION,
	/* One thread submits requests and takes results. */
	.flags = FIO_NO_OFFLOAD | FIO_ASYNCIO_SETS_ISSUE_TIME,
	.init = diopter_init,
	.queue = diopter_queue,
	.commit = diopter_commit,
	.getevents = diopter_getevents,
	.event = diopter_event,
	.cleanup = diopter_cleanup,
	.open_file = diopter_open_file,
	.close_file = diopter_close_file,
	.invalidate = diopter_invalidate,
	.get_file_size = diopter_get_file_size,
	.iomem_alloc = diopter_iomem_alloc,
	.iomem_free = diopter_iomem_free,
	.options = options,
	.option_struct_size = sizeof(struct diopter_options),
};
