/*
 * A name that is not that of the bytes: IMAGE::/PATH with "image", or the manifest of a striped
 * file with "striped". The second argument is the name, the third has the bytes.
 */
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    uint64_t more = strcmp(argv[1], "image") == 0 ? DPT_FILE_IMAGE : DPT_FILE_STRIPED;
    size_t length = strlen(argv[3]);
    char bytes[100] = {0};
    struct dpt_file *file = NULL;
    CHECK(length < sizeof bytes);
    /* Without the flag it is the name of a plain file. */
    if (more == DPT_FILE_IMAGE) {
        REFUSED(dpt_file_open(argv[2], O_RDONLY, 0, NULL, &file), ENOENT);
    } else {
        file = open_file(argv[2], O_RDONLY, 0);
        CHECK(dpt_pread(file, bytes, sizeof bytes, 0) > 0 && memcmp(bytes, argv[3], length) != 0);
        CHECK(dpt_file_close(file) == 0);
        memset(bytes, 0, sizeof bytes);
    }
    file = open_file(argv[2], O_RDWR, more);
    CHECK(dpt_file_size(file) == (int64_t)length);
    CHECK(dpt_pread(file, bytes, sizeof bytes, 0) == (ssize_t)length);
    CHECK(memcmp(bytes, argv[3], length) == 0);
    CHECK(dpt_pwrite(file, "X", 1, 1) == 1);
    CHECK(dpt_pread(file, bytes, 2, 0) == 2 && bytes[1] == 'X');
    CHECK(dpt_file_close(file) == 0);
    return 0;
}
