/*
 * Writes a file to standard output, past the page cache.
 *
 * cc cat.c -o cat $(pkg-config --cflags --libs diopter)
 */
#include <diopter.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 1 << 20 };

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    struct dpt_file *file;
    if (dpt_file_open(argv[1], O_RDONLY, 0, NULL, &file) < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], dpt_strerror_detail());
        return 1;
    }
    /* Any address will do: one that the device cannot use costs a copy. */
    char *piece = malloc(PIECE);
    ssize_t count = piece == NULL ? -1 : 1;
    for (int64_t offset = 0; count > 0; offset += count) {
        count = dpt_pread(file, piece, PIECE, offset);
        if (count < 0) {
            fprintf(stderr, "%s: %s\n", argv[0], dpt_strerror_detail());
        } else if (fwrite(piece, 1, (size_t)count, stdout) != (size_t)count) {
            count = -1;
        }
    }
    free(piece);
    dpt_file_close(file);
    return count < 0 || fflush(stdout) != 0;
}
