// Copies a file past the page cache, with several pieces in flight, and flushes the copy.
//
// c++ -std=c++17 copy.cpp -o copy $(pkg-config --cflags --libs diopter)

#include <diopter.h>
#include <fcntl.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::size_t piece_bytes = 1 << 20;
constexpr unsigned depth = 8;

int check(int result)
{
    if (result < 0)
        throw std::runtime_error(dpt_strerror_detail());
    return result;
}

struct Close {
    void operator()(dpt_file *file) const { dpt_file_close(file); }
    void operator()(dpt_queue *queue) const { dpt_queue_destroy(queue); }
};
using File = std::unique_ptr<dpt_file, Close>;
using Queue = std::unique_ptr<dpt_queue, Close>;

File open_file(const char *path, int flags)
{
    dpt_file *file = nullptr;
    check(dpt_file_open(path, flags, 0666, nullptr, &file));
    return File(file);
}

struct Piece {
    std::vector<char> bytes;
    dpt_request request;
};

void copy(const char *from, const char *to)
{
    File source = open_file(from, O_RDONLY);
    File target = open_file(to, O_RDWR | O_CREAT | O_TRUNC);
    std::int64_t size = dpt_file_size(source.get());
    // Extending writes wait for each other on some file systems: the size first.
    check(dpt_ftruncate(target.get(), size));

    std::vector<Piece> pieces(depth);
    // After the pieces: it is destroyed before them, and waits for what it has in flight.
    dpt_queue *made = nullptr;
    check(dpt_queue_create(nullptr, &made));
    Queue queue(made);

    std::int64_t next = 0;
    auto submit = [&](std::uint64_t slot, dpt_file *file, std::uint32_t op, std::int64_t offset,
                      std::size_t length) {
        Piece &piece = pieces[slot];
        piece.request = dpt_request{file, op, 0, offset, piece.bytes.data(), length, slot};
        check(dpt_queue_submit(queue.get(), &piece.request, 1));
    };
    auto read_next = [&](std::uint64_t slot) {
        if (next < size) {
            submit(slot, source.get(), DPT_OP_READ, next, piece_bytes);
            next += static_cast<std::int64_t>(piece_bytes);
        }
    };
    for (std::uint64_t slot = 0; slot < depth; slot++) {
        pieces[slot].bytes.resize(piece_bytes);
        read_next(slot);
    }
    while (check(dpt_queue_in_flight(queue.get())) > 0) {
        dpt_completion done[depth];
        int count = check(dpt_queue_complete(queue.get(), done, 1, depth, -1));
        for (int at = 0; at < count; at++) {
            if (done[at].result < 0)
                throw std::runtime_error(
                    dpt_completion_detail(queue.get(), static_cast<unsigned>(at)));
            std::uint64_t slot = done[at].user_data;
            if (done[at].op == DPT_OP_READ)
                submit(slot, target.get(), DPT_OP_WRITE, pieces[slot].request.offset,
                       static_cast<std::size_t>(done[at].result));
            else
                read_next(slot);
        }
    }
    check(dpt_fsync(target.get()));
}

}  // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s FROM TO\n", argv[0]);
        return 2;
    }
    try {
        copy(argv[1], argv[2]);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
        return 1;
    }
    return 0;
}
