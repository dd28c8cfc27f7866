/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* What passes between the programs and the loader; build/abi.rs makes the Rust side of it. */
#ifndef VARVE_ABI_H
#define VARVE_ABI_H

/* Options of struct settings */
#define OPT_PAGE_FLAGS 1u   /* look at page flags; the loader sets it only with a vmemmap */
#define OPT_SOFT_DIRTY 2u   /* bit 11 of an entry means written */
#define OPT_EXIT_HAS_MM 4u  /* sched_process_exit runs before the memory goes */
#define OPT_PREPARE_EXEC 8u /* sched_prepare_exec exists and is attached */
#define OPT_FAULTS 16u
#define OPT_GUARDED 32u    /* bit 10 of an entry means not written since userfaultfd protected it */
#define OPT_PAGES 256u     /* pages of tracked processes are looked at as they go */
#define OPT_CLEARS 128u    /* the recorder clears what it has read by process_madvise */
#define OPT_RANGES 64u     /* say of all ranges that go that they were looked at, touched or not */

/* Flags of a tracked process */
#define TRACK_FOLLOW 1u
#define TRACK_MAPPINGS 2u
#define TRACK_STACKS 4u
#define TRACK_FAULTS 8u
#define TRACK_VANISH 16u
#define TRACK_SAMPLES 32u
#define TRACK_HANDLERS 64u /* the first process in its memory without an exit signal makes its fault handler */
#define TRACK_MEMORY_FILES 256u /* of no process: somebody has a process's memory open as a file */
#define TRACK_HANDLER_MADE 128u  /* that one was made; another such process is tracked as any is */

struct settings {
	u64 direct;      /* where physical address 0 is mapped */
	u64 frame_mask;  /* bits of an entry that are the physical address */
	u64 vmemmap;     /* where struct page 0 is; 0: unknown */
	u32 levels;      /* 4 or 5 */
	u32 options;
	u32 stack_bytes;
	u32 ring_wake;   /* wake the reader when so many bytes wait */
	u32 self_pid;    /* process that must never be tracked: the recorder */
	u32 sample_stack; /* bytes of user stack to copy with each sample */
	u64 root;        /* the recorder's root folder: its dentry */
	u64 root_mount;
	u32 counter_batch; /* pages of a counter that a CPU may hold back */
	u32 pad;
};

/* What programs took of the time of tracked threads, nanoseconds, and how often they ran */
struct report_cost {
	u64 ns;
	u64 runs;
};

struct tracked {
	u64 leader; /* task_struct of the thread-group leader, 0: not known */
	u32 flags;
	u32 announced; /* threads that reached their end but not sched_process_exit */
	u32 dead;
	u32 pad;
	u64 image; /* when what it runs began: the time of its exec or fork */
	u64 mm;    /* its memory then; 0: not known */
	u64 peak;  /* the most resident pages of what it runs, read as that ended; 0: not read */
};

/* A process that may be a fault handler: it is not tracked unless it runs a program */
struct exempt {
	u64 made;
	u32 parent; /* the tracked process whose memory it shares */
	u32 flags;  /* those that it would have */
};

/* Sets and clears flags of a tracked process, if it runs that image still */
struct flag_args {
	u64 image;
	u32 pid;
	u32 set;
	u32 clear;
	u32 done;
};

/* Context of the program that looks at the filters of a process's system calls */
struct filter_args {
	u32 pid;
	u32 forbids_restart; /* out: a thread has one that is not known to let restart_syscall through */
};

#define LEAF_4K 0
#define LEAF_2M 1
#define LEAF_1G 2
#define REGION_HUGETLB 1u

struct region {
	u64 base;
	u64 accessed[8];
	u64 young[8];
	u64 referenced[8];
	u64 pinned[8];
	u64 sticky[8];
	u64 written[8];
	u64 intact[8];
	u64 others[8]; /* known by flags that another process may have set */
	u32 present;
	u16 leaf;
	u16 flags;
};

/* The pages of a region that are there, touched or not; of what MADV_FREE was called for, those written since */
struct resident {
	u64 base; /* low bits: LEAF_* */
	u64 pages[8];
};

/* Context of the walk program: first what is asked, then what was found */
struct walk_args {
	u32 pid;
	u32 first_ended; /* out: the first thread has ended, and the memory is the others' */
	u64 start;
	u64 end; /* up to where; 0: all */
	u64 most; /* stop behind the table in which so many pages were there; 0: never */
	u64 mm_wanted; /* the address space of the first call; 0: any */
	u64 wants_residents;
	/* out */
	u64 resume; /* where to go on; all ones when done */
	u64 mm;
	u64 present;
	u64 checks;
	u64 check_failures;
	u64 table_failures;
	u32 regions;
	s32 error; /* 0, or negative errno */
	u64 residents;
};

/* What /proc/PID/clear_refs is writing, and what it found on the way: the regions are in the output of the walk */
#define HARVEST_ACCESSED 1u
#define HARVEST_WRITTEN 4u
struct harvest {
	u64 mm; /* the address space that is being cleared, as the kernel says */
	u32 thread; /* who clears it; 0: nobody */
	u32 what;
	/* out */
	u32 regions;
	u32 lost; /* pages for which there was no room */
	u64 check_failures;
	u64 table_failures;
};

/* Context of the calibrate program */
#define CAL_FIND 0      /* find the direct map: an address of the caller's and what it holds are given */
#define CAL_TRANSLATE 1 /* translate an address with the settings, and read it there */
#define CAL_PIPE 2      /* struct page of the first buffer of a pipe */
struct calibrate_args {
	u32 what;
	s32 fd;
	u64 address;
	u64 value; /* in, and out with CAL_TRANSLATE: 8 bytes at the address */
	/* out */
	u64 direct;
	u64 frame_mask;
	u32 levels;
	s32 error;
	u64 entry; /* of the page tables, for the address */
	u64 page;
	u64 root; /* of this process's files: the dentry */
	u64 root_mount;
	u32 page_bytes; /* sizeof(struct page) */
	u32 tgid;
	u32 features; /* FEATURE_* */
	u32 pad;
};
#define FEATURE_YOUNG 1u
#define FEATURE_REFERENCED 2u
#define FEATURE_COMPOUND 4u
#define FEATURE_PINCOUNT 8u
#define FEATURE_HUGETLB 16u

/* How long threads slept in faults since the loader last wrote this, and up to when that is counted */
struct waits {
	u64 waited;
	u64 covered;
};

/* The cgroup whose freezer holds the target, and how often it let go since the loader last wrote this */
struct held_group {
	u64 id;    /* 0: none */
	u64 thaws;
};

/* Loss counters */
#define DROP_FAULT 0
#define DROP_VANISH_PAGES 1
#define DROP_VANISH_WALKS 2
#define DROP_LIFE 3
#define DROP_MAPPING 4
#define DROP_TRACK 5
#define DROP_SAMPLE 6
#define DROP_OPERATION 7
#define DROP_MARK 8
#define DROP_KINDS 9

/* What is charged to an allocator operation beside system calls, which have their numbers */
#define OPERATION_FAULT 0x10000
#define OPERATION_CLOCK_USER 0x10001   /* the clock of a CPU found it at work, in the program's code */
#define OPERATION_CLOCK_KERNEL 0x10002 /* likewise in the kernel */
#define OPERATION_CLOCK_PAUSE 0x10006  /* in the program's code, and at an instruction by which loops that wait pause */
#define OPERATION_LOCK_SLEPT 0x10003   /* it waited for the lock of the process's mappings, and slept */
#define OPERATION_LOCK_SPUN 0x10004    /* likewise, and kept its CPU */
#define OPERATION_LOCK_OTHERS 0x10005  /* likewise, for another process that held it */
#define OPERATION_UNMAPPED 0x10007     /* bytes that were there and went in a call that unmaps */
#define OPERATION_ADVISED 0x10008      /* likewise in madvise */
#define OPERATION_MOST 0x10009         /* of the process: the most bytes that were there before a call that takes some away */

struct operation_key {
	u64 word; /* what runs, and from where; 0: no operation */
	u32 pid;
	u32 what;
};

struct operation_sum {
	u64 count;
	u64 ns; /* in which the thread ran or slept */
	u64 queued; /* in which it was ready and had no CPU */
	u64 bytes; /* of system calls that did not fail */
	u64 failed; /* system calls that did */
};

/*
 * What is known of an allocator's function whose beginning or end runs a program: the cookie of the probe. Arguments are counted from 1, 0:
 * there is none.
 */
#define PROBE_OPERATION 31u      /* what it is, as the preload library numbers them */
#define PROBE_SIZE_SHIFT 5       /* the argument that is the size */
#define PROBE_TIMES_SHIFT 8      /* by which that is multiplied */
#define PROBE_OLD_SHIFT 11       /* the block that goes */
#define PROBE_ARGUMENT 7u
#define PROBE_STORES 0x4000u     /* the result is stored where the first argument points to */
#define PROBE_ANNOUNCES 0x8000u  /* it calls another probed function, which ends it */
#define PROBE_HEADERS 0x10000u   /* the word before a block is its size, as in glibc */
#define PROBE_AT_RETURN 0x20000u /* the probe is at an instruction that returns, and not where it returns to */
#define PROBE_STEPS 0x40000u     /* the kernel has the processor do the instruction of its beginning by itself, which takes longer */

/* A process whose allocator's functions are probed */
struct probed_process {
	u64 image; /* when what it runs began */
	u64 parent_image; /* of the one that it was forked from; 0: of none */
	u64 born; /* when it was forked from that */
	s64 requested; /* of blocks that live, in bytes */
	s64 usable;
	s64 blocks;
	s64 peak_requested;
	s64 peak_usable;
	u64 peak_ns;
	u64 uncounted;
	u64 uncounted_before; /* those of the process that it was forked from, up to the fork */
	u64 unknown_frees;
	u64 unseen_frees; /* blocks that were handed out where one lived */
	u64 operations;
	u32 threads; /* that have called it */
	u32 parent;
};

struct probed_row_key {
	u64 word; /* what was called, and from where */
	u64 image;
	u32 pid;
	u32 tid;
	u32 class;
	u32 pad;
};

struct probed_row {
	u64 count;
	u64 reallocated; /* blocks of the class that became others, by a change of size */
	u64 requested;
	u64 usable;
	u64 parallel;
	u64 timed;
	s64 ns; /* without what probes take on average: of few short ones this may be less than nothing */
};

struct probed_time_key {
	u32 pid;
	u32 kind;
	u32 bucket;
	u32 pad;
};

/* Of blocks that live */
struct probed_block_key {
	u64 address;
	u64 image;
	u32 pid;
	u32 pad;
};

struct probed_block {
	u64 requested;
	u64 usable;
	u64 born;
};

/* Context of the program that changes which processes are counted */
#define PROBE_EVERY 0  /* one operation in so many is timed, of whatever process; what probes take of that time */
#define PROBE_BEGIN 1  /* a tracked process is counted from now on */
#define PROBE_FORGET 2 /* it, or what it ran then, has ended: its blocks are forgotten */
struct probe_args {
	u64 image;
	u32 pid;
	u32 what;
	u32 every;
	u32 done;
	u32 within; /* nanoseconds */
	u32 within_steps; /* the same of PROBE_STEPS */
};

/* Records of the ring */
#define REC_FAULT 1
#define REC_VANISH 2
#define REC_FORK 3
#define REC_EXEC 4
#define REC_EXIT 5
#define REC_COMM 6
#define REC_MAPPING 7
#define REC_REGISTRATION 8 /* of memory with userfaultfd; a record and nothing else */

#define REC_MARK 9
#define REC_REFUSED 10
#define REC_FIRST_TOUCH 11
#define REC_EMPTIED 12

struct record {
	u32 kind;
	u32 aux;
	u64 time;
	u32 pid;
	u32 tid;
};

#define FAULT_NEXT 0x80000000u /* in the memory of a program that execve is still about to begin */
struct rec_fault {
	struct record r; /* aux: FAULT_NEXT | cpu << 8 | kernel << 7 | low bits of the error code */
	u64 ip;
	u64 address;
};

/*
 * A page that was not there was touched, by a process whose allocator operations are counted. Once as that begins, and with the flag
 * FIRST_TOUCH_SAMPLED as often as the clock of a CPU finds the thread at work in the page fault. A page that may not be accessed
 * (PROT_NONE), or is in swap, looks as if it were not there.
 */
#define FIRST_TOUCH_SAMPLED 1u
#define FIRST_TOUCH_BY_KERNEL 2u    /* as in read, outside of operations */
#define FIRST_TOUCH_IN_OPERATION 4u
struct rec_first_touch {
	struct record r; /* aux: FIRST_TOUCH_* or 0 */
	u64 address;
};

/* madvise has taken pages away, of such a process */
#define EMPTIED_LATER 1u /* the kernel takes them as it needs them */
#define EMPTIED_BY_OPERATION 2u
struct rec_emptied {
	struct record r; /* aux: EMPTIED_* or 0 */
	u64 address;
	u64 bytes;
};

/* An access that faulted was refused by a signal: nothing was touched */
struct rec_refused {
	struct record r;
	u64 address;
};

struct rec_fork {
	struct record r; /* the parent */
	u32 pid;
	u32 tid;
	u64 mm;
	u64 sp;
	u64 tls;
	u32 thread;
	u32 same_mm;
	u32 tracked;
	u32 own_tid; /* the thread's number in its own pid namespace */
};

#define PATH_BYTES 256
#define ARGUMENTS_AT 256
#define ARGUMENT_BYTES 512
#define VARIABLE_AT 768
#define VARIABLE_BYTES 256
#define FILE_AT 1024
#define FILE_BYTES 768
#define NAME_BYTES 256
#define EXEC_TEXT_BYTES 1792
#define EXEC_STATIC 1u     /* it begins in its own code, or is a 32-bit program: it loads no library of ours */
#define EXEC_SECURE 2u     /* it gained rights by its file's bits */
#define EXEC_OTHER_ROOT 4u /* its root folder is not the recorder's */
#define EXEC_PRELOADS 8u   /* LD_PRELOAD is among its variables */
#define EXEC_NO_PRELOAD 16u /* it is not, as all of them were looked at */
#define EXEC_NO_VARIABLES 32u /* it has none at all */
struct rec_exec {
	struct record r; /* aux: length of path */
	u64 mm;
	u32 old_tid;
	u32 flags;
	u32 arguments; /* bytes of all arguments, each with a zero byte behind it: there may be more than fit */
	u32 variable;  /* bytes of the value of LD_PRELOAD, likewise */
	u32 file;      /* bytes of the names of its file and that one's folders, innermost first; 0: not known */
	u32 pad;
	u64 peak;      /* the most resident pages of the program that ended here; 0: not read */
	u64 max_pages; /* the same of all programs of the process up to here (`signal->maxrss`); 0: not known */
	char text[EXEC_TEXT_BYTES]; /* the path, the arguments, the variable, the file */
};

struct rec_exit {
	struct record r; /* aux: last */
	s32 status;
	u32 pad;
	u64 peak; /* of the last thread: the most resident pages of its program; 0: not read */
	u64 max_pages; /* the same of all programs of the process (`signal->maxrss`); 0: not known */
};

struct rec_comm {
	struct record r;
	char name[16];
};

#define OP_MMAP 1
#define OP_MUNMAP 2
#define OP_MREMAP 3
#define OP_BRK 4
#define OP_SHMAT 5
#define OP_SHMDT 6
#define OP_LAST_MAPPING 6
#define OP_MADVISE 7
#define OP_PROCESS_MADVISE 8
#define OP_EXEC 9
#define OP_EXIT 10
#define OP_TRUNCATE 11
#define OP_FTRUNCATE 12
#define OP_FALLOCATE 13
#define OP_REMAP_FILE 14
#define OP_OLD_MMAP 15 /* i386: arguments in memory */
#define OP_EXECAT 16
#define OP_IPC 17 /* i386: multiplexed shmat and shmdt */
#define OP_OPEN 18
#define OP_OPENAT 19
#define OP_OPENAT2 20
#define OP_CREAT 21
#define OP_PROCESS_MRELEASE 22
#define OP_IOCTL 23
/* The kernel reads or writes the memory of the process that is named, without the mapping */
#define OP_PROCESS_VM 24
#define OP_PTRACE 25
#define OP_READ 26    /* bytes, at the file's position */
#define OP_READV 27
#define OP_PREAD 28   /* at a position of the call's own */
#define OP_PREADV 29

#define MAPPING_HAS_STACK 1u
#define MAPPING_OF_OPERATION 2u /* an allocator operation ran on the thread */

#define STACK_MAX 16384
struct rec_mapping {
	struct record r; /* aux: OP_* */
	u64 entered;
	u64 args[6];
	u64 before; /* end of the heap at entry, for brk */
	s64 result;
	u64 ip, sp, bp;
	u64 saved[5]; /* rbx, r12 to r15 */
	u32 stack_bytes;
	u32 flags; /* MAPPING_* */
};

/* Where a sample found the thread; in the low bits of aux, the CPU above */
#define SAMPLE_PLACE 3u /* the bits of it but the flag */
#define SAMPLE_USER 0u
#define SAMPLE_CALL 1u  /* in the kernel, in a system call */
#define SAMPLE_TRAP 2u  /* in the kernel, for a fault or an interrupt */
#define SAMPLE_COMPAT 4u /* flag: 32-bit code */
#define SAMPLE_RED_ZONE 8u /* flag: the red zone could be read */
#define SAMPLE_STACK_MAX 4096

/* What samples have taken of the time of those that they were taken of, since the load */
struct sample_cost {
	u64 taken;
	u64 ns;
};

/* Of the sample ring, which holds nothing else */
struct rec_sample {
	struct record r; /* kind: bytes of stack behind it; aux: cpu << 8 | SAMPLE_* */
	u64 ip;          /* of the user's side, also where the kernel was interrupted */
	u64 flags;
	u64 regs[16]; /* in the order of their numbers: ax cx dx bx sp bp si di r8 to r15 */
	u64 fs_base;
	u64 gs_base;
	u64 period; /* nanoseconds of the CPU that it stands for */
	u64 red_zone[16]; /* 128 bytes below the stack pointer, which leaf functions use (System V ABI of x86-64, 3.2.2) */
};

/*
 * A mark of the program's: brk(0, MARK_WORD + what, name, bytes). The kernel looks at the first argument alone, and says where the
 * break is. varve/mark.h makes it.
 */
#define MARK_WORD 0x56525600u
#define MARK_WHAT 0xffu
#define MARK_BEGIN 1u
#define MARK_END 2u
#define MARK_EVENT 3u
#define MARK_NAME_BYTES 128
struct rec_mark {
	struct record r; /* aux: MARK_BEGIN and so on */
	u32 bytes; /* of the name, as the program says: not all may be there */
	u32 there; /* bytes of it that could be read */
	char name[MARK_NAME_BYTES];
};

#define VANISH_ENTRIES 28
/* In the low bits of base: a further bitmap of the region before it, in this order */
#define ENTRY_WRITTEN 4u
#define ENTRY_OTHERS 8u
#define ENTRIES_OF_REGION 3
/* Or, in a record that says a range, the pages that were there, touched or not: as in struct resident */
#define ENTRY_THERE 16u
struct vanish_entry {
	u64 base; /* low bits: LEAF_* and ENTRY_* */
	u64 pages[8];
};

#define CAUSE_UNMAP 0
#define CAUSE_REMAP 1
#define CAUSE_BRK 2
#define CAUSE_ADVISE 3
#define CAUSE_OVERMAP 4
#define CAUSE_SHMDT 5
#define CAUSE_EXEC 6
#define CAUSE_EXIT 7
#define CAUSE_TRUNCATE 8
#define CAUSE_KERNEL_TOUCH 9
#define CAUSE_ADVISE_AWAY 11 /* advice that takes the pages and not only their bits */
#define CAUSE_POPULATE 10 /* nothing goes: the kernel maps the range, without a fault for each page */

/* In aux: another process than the one whose memory it is makes the pages vanish */
#define CAUSE_BY_OTHERS 0x100u

struct rec_vanish {
	struct record r; /* aux: cause; pid: whose memory it is */
	u64 mm;
	u64 start; /* with OPT_RANGES: all that is there from here on was looked at, and goes; what is not went before */
	u64 end;   /* 0: not said */
	u64 count;
	struct vanish_entry entries[VANISH_ENTRIES];
};

#endif
