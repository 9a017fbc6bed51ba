/* Writes a stream of records of any length, and acknowledges each on standard output.
 *
 *   writer stream FILE COUNT   writes, then prints the end of the record as 8 bytes, each time
 *   writer fork FILE COUNT     forks in mid-stream; both write by the descriptor that they share
 *
 * Byte n of a stream is n * 31 + n / 4093, so each record shows where it belongs. A record of
 * `fork` is 70,001 bytes of the same letter. With DIRECT=1 the file is opened with O_DIRECT. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORD = 70001 };
static unsigned char memory[300000];

static void whole(int fd, const void *bytes, size_t count) {
	if (write(fd, bytes, count) != (ssize_t)count)
		_exit(3);
}

static int stream(int fd, long count) {
	uint64_t end = 0, random = 88172645463325252ULL;
	while (count--) {
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		size_t length = 1 + random % (count % 3 ? 9000 : 200000);
		for (size_t i = 0; i < length; i++)
			memory[i] = (end + i) * 31 + (end + i) / 4093;
		whole(fd, memory, length);
		end += length;
		whole(1, &end, sizeof end);
	}
	return 0;
}

static int forked(int fd, long count) {
	memset(memory, 'a', RECORD);
	for (int i = 0; i < count; i++)
		whole(fd, memory, RECORD);
	pid_t child = fork();
	memset(memory, child ? 'b' : 'c', RECORD);
	for (int i = 0; i < count; i++)
		whole(fd, memory, RECORD);
	if (!child)
		_exit(0);
	int status;
	return waitpid(child, &status, 0) != child || status;
}

int main(int count, char **arguments) {
	int flags = O_RDWR | O_CREAT | O_TRUNC | (getenv("DIRECT") ? O_DIRECT : 0);
	flags |= getenv("APPEND") ? O_APPEND : 0;
	if (count != 4)
		return 1;
	int fd = open(arguments[2], flags, 0644);
	if (fd < 0)
		return 2;
	long records = atol(arguments[3]);
	return strcmp(arguments[1], "fork") ? stream(fd, records) : forked(fd, records);
}
