/* Opens a file inside an image, IMAGE::/PATH, that has the words of the second argument. */
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    struct dpt_file *file = NULL;
    /* Without the flag, it is the name of a file. */
    REFUSED(dpt_file_open(argv[1], O_RDONLY, 0, NULL, &file), ENOENT);
    file = open_file(argv[1], O_RDWR, DPT_FILE_IMAGE);
    int64_t size = dpt_file_size(file);
    char bytes[100] = {0};
    CHECK(size == (int64_t)strlen(argv[2]) && size < 100);
    CHECK(dpt_pread(file, bytes, sizeof bytes, 0) == size && strcmp(bytes, argv[2]) == 0);
    CHECK(dpt_pwrite(file, "X", 1, 1) == 1);
    CHECK(dpt_pread(file, bytes, 2, 0) == 2 && bytes[1] == 'X');
    CHECK(dpt_file_close(file) == 0);
    return 0;
}
