# Adds up a trace of the kernel: where each probed function ran, who queued which work, and the
# bytes of the bios of the job.
{
    at = 0
    for (i = 2; i < 6; i++) if ($i ~ /^\[[0-9]+\]$/) { at = i; break }
    if (!at) next
    name = $(at + 3); sub(/:$/, "", name)
    flag = substr($(at + 1), 3, 1)
    task = $1; sub(/-[0-9]+$/, "", task); sub(/^kworker.*/, "kworker", task)
    where = flag ~ /[hHzZ]/ ? "hardirq" : flag == "s" ? "softirq" : task
}
at && name == "block_bio_queue" {
    if (where ~ /^(kworker|jbd2|xfsaild|btrfs-|f2fs_|hardirq|softirq)/) next
    for (i = at + 4; i <= NF; i++) if ($i == "+") sectors = $(i + 1)
    if (bios++ < 64) sizes = sizes (bios > 1 ? "," : "") sectors * 512
    next
}
at && name == "queue_work" {
    work = by = ""
    for (i = at + 4; i <= NF; i++) {
        if ($i ~ /^work=/) work = substr($i, 6)
        if ($i ~ /^by=/) by = substr($i, 4)
    }
    sub(/\+.*/, "", work); sub(/\+.*/, "", by)
    queued[work "\",\"" by]++
    next
}
at { ran[name "\",\"" where]++ }
function list(counts,    key, text) {
    for (key in counts) text = text (text == "" ? "" : ",") "[\"" key "\"," counts[key] "]"
    return text
}
END { printf "\"bios\":%d,\"bio_bytes\":[%s],\"ran\":[%s],\"queued\":[%s]", \
    bios, sizes, list(ran), list(queued) }
