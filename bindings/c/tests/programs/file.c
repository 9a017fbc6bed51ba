/* Blocking calls: bytes, sizes, flags. Runs in a directory of its own. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/stat.h>
#include <unistd.h>

static void transfers(void)
{
    struct dpt_file *file = make_file("data", 1 << 20);
    unsigned char bytes[70000];
    CHECK(dpt_file_size(file) == 1 << 20);
    CHECK(dpt_pread(file, bytes + 1, 69999, 12345) == 69999);
    CHECK(is_pattern(bytes + 1, 69999, 12345));
    CHECK(dpt_pread(file, bytes, 1000, (1 << 20) - 10) == 10);
    CHECK(dpt_pread(file, bytes, 1000, 1 << 20) == 0);
    CHECK(dpt_pread(file, NULL, 0, 0) == 0);
    CHECK(dpt_pwrite(file, NULL, 0, 0) == 0);

    struct iovec parts[3] = {{bytes, 100}, {NULL, 0}, {bytes + 500, 20000}};
    CHECK(dpt_preadv(file, parts, 3, 777) == 20100);
    CHECK(is_pattern(bytes, 100, 777) && is_pattern(bytes + 500, 20000, 877));
    memset(bytes, 'x', 300);
    struct iovec texts[2] = {{bytes, 200}, {bytes + 250, 50}};
    CHECK(dpt_pwritev(file, texts, 2, 3) == 250);
    CHECK(dpt_pread(file, bytes, 300, 0) == 300);
    CHECK(is_pattern(bytes, 3, 0) && bytes[3] == 'x' && bytes[252] == 'x');
    CHECK(is_pattern(bytes + 253, 47, 253));
    CHECK(dpt_preadv(file, NULL, 0, 0) == 0);

    CHECK(dpt_ftruncate(file, 1000) == 0 && dpt_file_size(file) == 1000);
    CHECK(dpt_fdatasync(file) == 0 && dpt_fsync(file) == 0);
    int reserved = dpt_fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 1 << 20);
    CHECK(reserved == 0 || reserved == -EOPNOTSUPP);
    CHECK(dpt_file_size(file) == 1000);
    CHECK(dpt_file_close(file) == 0);
}

static void flags(void)
{
    struct dpt_file *file = make_file("flags", 5000);
    CHECK(dpt_file_close(file) == 0);
    unsigned char bytes[16];

    file = open_file("flags", O_RDONLY | O_CLOEXEC | O_DIRECT, 0);
    REFUSED(dpt_pwrite(file, "x", 1, 0), EBADF);
    CHECK(dpt_file_close(file) == 0);
    file = open_file("flags", O_WRONLY, 0);
    REFUSED(dpt_pread(file, bytes, 1, 0), EBADF);
    CHECK(dpt_file_close(file) == 0);

    file = open_file("flags", O_RDWR | O_APPEND | O_DSYNC, 0);
    CHECK(dpt_pwrite(file, "end", 3, 0) == 3);
    CHECK(dpt_pread(file, bytes, 16, 5000) == 3 && memcmp(bytes, "end", 3) == 0);
    CHECK(dpt_file_close(file) == 0);

    file = open_file("flags", O_RDWR | O_SYNC, DPT_FILE_BUFFERED);
    CHECK(dpt_pread(file, bytes, 16, 1) == 16 && is_pattern(bytes, 16, 1));
    CHECK(dpt_file_close(file) == 0);
    struct dpt_file_options both = {sizeof both, DPT_FILE_BUFFERED | DPT_FILE_ADAPTIVE};
    REFUSED(dpt_file_open("flags", O_RDWR, 0, &both, &file), EINVAL);
    CHECK(strstr(dpt_strerror_detail(), "DPT_FILE_ADAPTIVE") != NULL);

    file = open_file("flags", O_RDWR | O_TRUNC, DPT_FILE_SHARED_WRITERS | DPT_FILE_STRIPED);
    CHECK(dpt_file_size(file) == 0);
    CHECK(dpt_pwrite(file, "shared", 6, 0) == 6);
    CHECK(dpt_file_close(file) == 0);

    CHECK(dpt_file_open("new", O_RDWR | O_CREAT | O_EXCL, 0600, NULL, &file) == 0);
    struct stat facts;
    CHECK(stat("new", &facts) == 0 && (facts.st_mode & 0777) == 0600);
    CHECK(dpt_file_close(file) == 0);
    REFUSED(dpt_file_open("new", O_RDWR | O_CREAT | O_EXCL, 0600, NULL, &file), EEXIST);
    int fd = open("flags", O_RDWR | O_APPEND);
    CHECK(fd >= 0 && dpt_file_from_fd(fd, &file) == 0 && close(fd) == 0);
    CHECK(dpt_pwrite(file, "appended", 8, 0) == 8 && dpt_file_size(file) == 14);
    CHECK(dpt_pread(file, bytes, 14, 0) == 14 && memcmp(bytes, "sharedappended", 14) == 0);
    CHECK(dpt_file_close(file) == 0);
    int direct;
    for (direct = 0; direct <= O_DIRECT; direct += O_DIRECT) {
        fd = open("flags", O_RDWR | direct);
        if (fd < 0 && errno == EINVAL)
            continue; /* This file system has no direct I/O. */
        CHECK(fd >= 0 && dpt_file_from_fd(fd, &file) == 0);
        CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0);
        CHECK(dpt_pwrite(file, "SHARED", 6, 0) == 6 && dpt_file_size(file) == 14);
        CHECK(dpt_pread(file, bytes, 14, 0) == 14 && memcmp(bytes, "SHAREDappended", 14) == 0);
        CHECK(dpt_pwrite(file, "shared", 6, 0) == 6);
        CHECK(dpt_file_close(file) == 0 && close(fd) == 0);
    }
    fd = open("flags", O_RDONLY);
    CHECK(fd >= 0 && dpt_file_from_fd(fd, &file) == 0);
    REFUSED(dpt_pwrite(file, "x", 1, 0), EBADF);
    CHECK(dpt_file_close(file) == 0 && read(fd, bytes, 6) == 6 && close(fd) == 0);
    CHECK(symlink("new", "link") == 0);
    REFUSED(dpt_file_open("link", O_RDONLY | O_NOFOLLOW, 0, NULL, &file), ELOOP);
}

int main(void)
{
    CHECK(strcmp(dpt_strerror_detail(), "") == 0);
    CHECK(strchr(dpt_version(), '.') != NULL);
    transfers();
    flags();
    return 0;
}
