/*
 * A caller that frees the memory of a request before it completes, which is forbidden. Under
 * AddressSanitizer the library's copy into it is reported.
 */
#include "check.h"

int main(void)
{
    struct dpt_file *file = make_file("data", 100000);
    struct dpt_queue *queue = make_queue(NULL);
    struct dpt_completion done;
    char *memory = malloc(5000);
    CHECK(memory != NULL);
    struct dpt_request request = request_of(file, DPT_OP_READ, 1, memory, 5000, 0);
    CHECK(dpt_queue_submit(queue, &request, 1) == 1);
    free(memory);
    CHECK(dpt_queue_complete(queue, &done, 1, 1, -1) == 1);
    return 0;
}
