/* The library is loaded, used, closed while its threads run, and loaded again. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>

typedef int create_fn(const struct dpt_queue_options *, struct dpt_queue **);
typedef int submit_fn(struct dpt_queue *, const struct dpt_request *, unsigned int);
typedef int complete_fn(struct dpt_queue *, struct dpt_completion *, unsigned int, unsigned int,
                        int64_t);
typedef int destroy_fn(struct dpt_queue *);
typedef int open_fn(const char *, int, mode_t, const struct dpt_file_options *,
                    struct dpt_file **);
typedef int close_fn(struct dpt_file *);

#define EXPECT(condition)                                           \
    do {                                                            \
        if (!(condition)) {                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                \
        }                                                           \
    } while (0)

/* ISO C has no conversion from a pointer to data. */
static void function(void *library, const char *name, void *to)
{
    void *symbol = dlsym(library, name);
    EXPECT(symbol != NULL);
    memcpy(to, &symbol, sizeof symbol);
}

int main(int argc, char **argv)
{
    EXPECT(argc == 2);
    for (int round = 0; round < 3; round++) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        EXPECT(library != NULL);
        create_fn *create;
        submit_fn *submit;
        complete_fn *complete;
        destroy_fn *destroy;
        open_fn *open_one;
        close_fn *close_one;
        function(library, "dpt_queue_create", &create);
        function(library, "dpt_queue_submit", &submit);
        function(library, "dpt_queue_complete", &complete);
        function(library, "dpt_queue_destroy", &destroy);
        function(library, "dpt_file_open", &open_one);
        function(library, "dpt_file_close", &close_one);
        struct dpt_queue_options options;
        memset(&options, 0, sizeof options);
        options.size = sizeof options;
        options.backend = "threads";
        struct dpt_queue *queue;
        struct dpt_file *file;
        struct dpt_completion done;
        EXPECT(open_one("data", O_RDWR | O_CREAT, 0600, NULL, &file) == 0);
        EXPECT(create(&options, &queue) == 0);
        struct dpt_request request = request_of(file, DPT_OP_FSYNC, 0, NULL, 0, 7);
        EXPECT(submit(queue, &request, 1) == 1);
        EXPECT(complete(queue, &done, 1, 1, -1) == 1 && done.user_data == 7);
        EXPECT(destroy(queue) == 0 && close_one(file) == 0);
        /* Worker threads of the queue wait for more work for two seconds. */
        EXPECT(dlclose(library) == 0);
        EXPECT(dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) != NULL);
    }
    return 0;
}
