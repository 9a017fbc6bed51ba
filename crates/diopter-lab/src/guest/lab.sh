# What a job does inside the virtual machine. It runs under busybox's shell, decides nothing, and
# prints one JSON object a line; what the figures mean is decided outside.

TRACING=/sys/kernel/tracing
SNAPSHOT='cat /proc/timer_list /proc/stat'
NULLB=/sys/kernel/config/nullb/lab
TARGET=

# word TEXT: what may stand between quotes in JSON.
word() { printf '%s' "$1" | tr '"\\\n\t' "'/  "; }

# A failure ends the boot: no later figure may come from a machine that is not as it should be.
fail() {
    echo "{\"kind\":\"failure\",\"what\":\"$(word "$1")\"}"
    exit 1
}

tell_kernel() {
    echo "{\"kind\":\"kernel\",\"release\":\"$(uname -r)\",\"version\":\"$(uname -v)\",\
\"command_line\":\"$(word "$(cat /proc/cmdline)")\",\
\"cpu\":\"$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)\",\
\"memory_kib\":$(awk '/^MemTotal/ { print $2 }' /proc/meminfo),\
\"programs\":\"$(fio --version)\"}"
}

# make_device MEGABYTES COMPLETION_NS MEGABYTES_PER_SECOND (0: unlimited)
make_device() {
    mkdir $NULLB 2>/dev/null || fail 'null_blk makes no devices: the module is missing or too old'
    echo 4096 >$NULLB/blocksize
    echo "$1" >$NULLB/size
    echo 1 >$NULLB/memory_backed
    echo 2 >$NULLB/irqmode
    echo "$2" >$NULLB/completion_nsec
    [ "$3" = 0 ] || echo "$3" >$NULLB/mbps
    echo 1 >$NULLB/power || fail 'null_blk does not switch on'
    sleep 1
    # Older kernels name it by its index, newer ones by its directory.
    DEVICE=/dev/lab
    [ -b $DEVICE ] || DEVICE=/dev/nullb$(cat $NULLB/index)
    [ -b "$DEVICE" ] || fail 'null_blk is on, and there is no device of it'
    tell_device "$1"
}

# find_device NAME MEGABYTES: one that the machine has.
find_device() {
    DEVICE=/dev/$1
    [ -b "$DEVICE" ] || fail "the kernel shows no $1: it lacks the driver"
    tell_device "$2"
}

tell_device() {
    queue=/sys/block/${DEVICE#/dev/}/queue
    echo none >"$queue/scheduler" 2>/dev/null
    for name in max_sectors_kb max_segments logical_block_size nr_requests scheduler write_cache; do
        echo "$name $(cat "$queue/$name")"
    done >/tmp/queue
    echo "{\"kind\":\"device\",\"name\":\"${DEVICE#/dev/}\",\"bytes\":$(($1 * 1048576)),\
\"queue\":{$(awk '{ value = $0; sub(/^[^ ]+ /, "", value); sub(/ $/, "", value)
        printf "%s\"%s\":\"%s\"", (NR > 1 ? "," : ""), $1, value }' /tmp/queue)}}"
}

# make_file_system KIND: on the device. TARGET is where the job writes.
make_file_system() {
    TARGET=$DEVICE
    [ "$1" = raw ] && return
    type=$1
    case $1 in
        ext2 | ext3 | ext4)
            type=ext4
            mkfs.ext4 -t "$1" -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$DEVICE"
            ;;
        xfs) mkfs.xfs -q -f -K "$DEVICE" ;;
        btrfs) mkfs.btrfs -q -f -K "$DEVICE" ;;
        f2fs) mkfs.f2fs -q -f -t 0 "$DEVICE" ;;
        vfat) mkfs.vfat "$DEVICE" ;;
    esac >/tmp/mkfs 2>&1 || fail "mkfs of $1: $(tail -n 3 /tmp/mkfs)"
    mkdir -p /mnt
    mount -t $type "$DEVICE" /mnt 2>/tmp/mount || fail "mount of $1: $(cat /tmp/mount)"
    grep -q ' /mnt ' /proc/mounts || fail "$1 is not mounted"
    TARGET=/mnt/file
    echo "{\"kind\":\"mount\",\"options\":\"$(
        awk '$2 == "/mnt" { print $4 }' /proc/mounts)\"}"
}

# write_file KIBIBYTES: a file, written and not only allocated: completions on unwritten extents
# are put off by every kernel.
write_file() {
    dd if=/dev/zero of="$TARGET" bs=4k count=$(($1 / 4)) 2>/tmp/dd ||
        fail "write the file: $(tail -n 1 /tmp/dd)"
    settle
}

# settle: the journal and writeback are quiet, and no page of the file is cached.
settle() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
    sleep 12
}

# pair PROGRAM: what awk's program prints of the snapshot before the job and of that after.
pair() { echo "[$(awk "$1" /tmp/lab.prerun.txt),$(awk "$1" /tmp/lab.postrun.txt)]"; }

# idle_pair: the idle time in nanoseconds, with that of io_uring's waiters, which the kernel counts
# as waiting for I/O. Kernels from 7.2 on tell it nowhere.
idle_pair() {
    grep -q idle_sleeptime /proc/timer_list || { echo null; return; }
    pair '/(idle|iowait)_sleeptime/ { total += $(NF - 1) } END { printf "%.0f", total }'
}

# job ENGINE RW BLOCK_BYTES IODEPTH OFFSET SIZE: what the next passes do.
job() { engine=$1 rw=$2 block=$3 depth=$4 offset=$5 size=$6; }

# run_fio IOS [MORE...]: the job; its report is /tmp/fio.json.
run_fio() {
    ios=$1
    shift
    rm -f /tmp/fio.json /tmp/lab.*.txt
    cd /tmp && fio --name=lab --filename="$TARGET" --offset="$offset" --size="$size" --direct=1 \
        --thread=1 --overwrite=1 --norandommap=1 --randrepeat=1 --randseed=1 --fallocate=none \
        --ioengine="$engine" --rw="$rw" --bs="$block" --iodepth="$depth" --number_ios="$ios" \
        --io_size=1t --output-format=json --output=/tmp/fio.json "$@" >/tmp/fio.out 2>&1
}

# write_once: a single request without fio, which would make the file anew.
write_once() {
    dd if=/dev/zero of="$TARGET" bs="$block" seek="$offset" count=1 conv=notrunc \
        oflag=seek_bytes,direct 2>/tmp/fio.out
}

cell_failed() {
    echo "{\"kind\":\"cell-failure\",\"cell\":$1,\"what\":\"$(
        word "$(cat /tmp/fio.out /tmp/fio.json 2>/dev/null | grep -a '^[a-z]*: ' | tail -n 2)")\"}"
}

# measure CELL PASS IOS. The job's own thread takes the snapshots right before its first and right
# after its last request: fio's main thread only looks every 10 ms.
measure() {
    sleep 1
    run_fio "$3" --exec_prerun="$SNAPSHOT" --exec_postrun="$SNAPSHOT" ||
        { cell_failed "$1"; return; }
    echo "{\"kind\":\"run\",\"cell\":$1,\"pass\":\"$2\",\"ios\":$3,\"now_ns\":$(pair \
        '/^now at/ { print $3; exit }'),\"idle_ns\":$(idle_pair),\
\"switches\":$(pair '/^ctxt/ { print $2 }'),\"fio\":$(
        sed -n '/^{/,$p' /tmp/fio.json | tr -d '\n\t')}"
}

# watch_completions: probes of the traced pass. A function that this kernel lacks is left out.
watch_completions() {
    echo >$TRACING/kprobe_events
    echo 16384 >$TRACING/buffer_size_kb
    for name in aio_complete_rw io_complete_rw dio_complete iomap_dio_complete; do
        echo "p:lab/$name $name" >>$TRACING/kprobe_events 2>/dev/null
    done
    echo 'p:lab/queue_work queue_work_on work=+24(%dx):symbol by=$stack0:symbol' \
        >>$TRACING/kprobe_events 2>/dev/null
}

# trace CELL IOS COMMAND...: the traced pass of a cell.
trace() {
    cell=$1 ios=$2
    shift 2
    sleep 1
    echo >$TRACING/trace
    echo 1 >$TRACING/events/lab/enable
    echo 1 >$TRACING/events/block/block_bio_queue/enable
    "$@"
    status=$?
    echo 0 >$TRACING/events/enable
    [ $status = 0 ] || { cell_failed "$cell"; return; }
    echo "{\"kind\":\"trace\",\"cell\":$cell,\"ios\":$ios,\
$(awk -f /tmp/trace.awk $TRACING/trace)}"
}
