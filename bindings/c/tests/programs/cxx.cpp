// The header in C++, with the types of std.
#include <diopter.h>
#include <fcntl.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

namespace {

struct Close {
    void operator()(dpt_file *file) const { dpt_file_close(file); }
    void operator()(dpt_queue *queue) const { dpt_queue_destroy(queue); }
};

bool run()
{
    dpt_file *opened = nullptr;
    if (dpt_file_open("data", O_RDWR | O_CREAT | O_TRUNC, 0600, nullptr, &opened) < 0)
        return false;
    std::unique_ptr<dpt_file, Close> file(opened);
    const std::string text(5000, 'c');
    if (dpt_pwrite(file.get(), text.data(), text.size(), 3) != 5000)
        return false;
    dpt_queue *created = nullptr;
    if (dpt_queue_create(nullptr, &created) < 0)
        return false;
    std::string read(5000, '\0');
    std::unique_ptr<dpt_queue, Close> queue(created);
    dpt_request request = {};
    request.file = file.get();
    request.op = DPT_OP_READ;
    request.offset = 3;
    request.buf = &read[0];
    request.length = read.size();
    dpt_completion done = {};
    return dpt_queue_submit(queue.get(), &request, 1) == 1 &&
           dpt_queue_complete(queue.get(), &done, 1, 1, -1) == 1 && done.result == 5000 &&
           done.outcome.done == 5000 && read == text;
}

}  // namespace

int main()
{
    if (!run()) {
        std::fprintf(stderr, "%s\n", dpt_strerror_detail());
        return 1;
    }
    return 0;
}
