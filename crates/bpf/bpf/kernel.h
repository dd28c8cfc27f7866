/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * The few kernel types that the programs look at. Field offsets are filled in at load time from the
 * running kernel's BTF, so order and padding mean nothing here; no vmlinux.h is needed to build.
 */
#ifndef VARVE_KERNEL_H
#define VARVE_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef s32 __s32;
typedef u64 __u64;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PROG_ARRAY 3
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_F_NO_PREALLOC 1
#define BPF_F_MMAPABLE 1024
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#define BPF_RB_AVAIL_DATA 0

struct bpf_raw_tracepoint_args {
	u64 args[0];
};

/* x86-64, fixed by the system call path and by ptrace */
struct pt_regs {
	u64 r15, r14, r13, r12, bp, bx;
	u64 r11, r10, r9, r8, ax, cx, dx, si, di;
	u64 orig_ax, ip, cs, flags, sp, ss;
};

/* Context of a perf_event program (include/uapi/linux/bpf_perf_event.h) */
struct bpf_perf_event_data {
	struct pt_regs regs;
	u64 sample_period;
	u64 addr;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	s64 counter;
} atomic64_t;

typedef struct {
	atomic64_t refcnt;
} file_ref_t;

struct list_head {
	struct list_head *next;
};

struct page {
	unsigned long compound_head;
	unsigned int page_type;
	unsigned char compound_dtor;
	struct address_space *mapping;
	atomic_t _mapcount;
	atomic_t _refcount;
};

struct folio {
	atomic_t _pincount;
	atomic_t _large_mapcount;
};

struct thread_info {
	u32 status;
};

struct thread_struct {
	unsigned long fsbase;
	unsigned long gsbase;
};

struct maple_tree {
	unsigned int ma_flags;
};
struct ma_state {
	struct maple_tree *tree;
	unsigned long index;
	unsigned long last;
};

struct xol_area {
	unsigned long vaddr;
};
struct uprobes_state {
	struct xol_area *xol_area;
};
/* Counters are of one word; the kernel has them in structs of their own */
struct rw_semaphore {
	struct {
		long long counter;
	} count;
	struct {
		long long counter;
	} owner;
};

/* A counter with a part for each processor; `count` lacks what these parts have not handed over yet */
struct percpu_counter {
	s64 count;
};
/* Up to 6.1 */
struct mm_rss_stat {
	atomic64_t count[4];
};
struct mm_struct___one_counter {
	struct mm_rss_stat rss_stat;
};
/* What a thread has not handed over yet; up to 6.1 */
struct task_rss_stat {
	int count[4];
};

struct mm_struct {
	u64 *pgd;
	unsigned long hiwater_rss;
	struct percpu_counter rss_stat[4];
	struct rw_semaphore mmap_lock;
	struct uprobes_state uprobes_state;
	atomic_t mm_users;
	unsigned long brk;
	unsigned long arg_start;
	unsigned long arg_end;
	unsigned long env_start;
	unsigned long env_end;
	unsigned long start_code;
	unsigned long end_code;
	struct file *exe_file;
	struct maple_tree mm_mt;
	struct task_struct *owner;
};

struct signal_struct {
	atomic_t live;
	int nr_threads;
	struct list_head thread_head;
	struct task_struct *group_exec_task;
	int group_exit_code;
	unsigned int flags;
	unsigned long maxrss;
};

struct rb_node {
	unsigned long __rb_parent_color;
	struct rb_node *rb_right;
	struct rb_node *rb_left;
};
struct rb_root {
	struct rb_node *rb_node;
};
struct rb_root_cached {
	struct rb_root rb_root;
};
struct address_space {
	struct rb_root_cached i_mmap;
};
struct super_block {
	unsigned long s_magic;
};
struct qstr {
	const unsigned char *name;
};
struct hlist_bl_node {
	struct hlist_bl_node **pprev;
};
struct dentry {
	struct hlist_bl_node d_hash;
	struct dentry *d_parent;
	struct qstr d_name;
};
struct vfsmount {
	struct dentry *mnt_root;
};
struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};
struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};
struct inode {
	s64 i_size;
	struct super_block *i_sb;
	void *i_private;
};
struct vm_userfaultfd_ctx {
	struct userfaultfd_ctx *ctx;
};
struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_pgoff;
	struct file *vm_file;
	struct mm_struct *vm_mm;
	struct {
		struct rb_node rb;
	} shared;
	struct vm_userfaultfd_ctx vm_userfaultfd_ctx;
};
struct mm_walk {
	struct mm_struct *mm;
};
struct hlist_node {
	struct hlist_node *next;
};
struct hlist_head {
	struct hlist_node *first;
};
struct xarray {
	void *xa_head;
};
struct xa_node {
	unsigned char shift;
	void *slots[64];
};
struct idr {
	struct xarray idr_rt;
};
struct pid_namespace {
	struct idr idr;
};
struct upid {
	int nr;
	struct pid_namespace *ns;
};
struct pid {
	unsigned int level;
	struct hlist_head tasks[4];
	struct upid numbers[1];
};
struct pipe_buffer {
	struct page *page;
};
struct pipe_inode_info {
	struct pipe_buffer *bufs;
};
struct file {
	void *private_data;
	struct address_space *f_mapping;
	struct inode *f_inode;
	struct path f_path;
	s64 f_pos;
	atomic64_t f_count; /* up to 6.12; file_ref_t since */
	file_ref_t f_ref;
};
struct io_kiocb {
	u8 opcode;
};
struct proc_inode {
	struct pid *pid;
	struct inode vfs_inode;
};
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};
struct fs_struct {
	struct path root;
};
struct files_struct {
	atomic_t count;
	struct fdtable *fdt;
};

struct kernfs_node {
	u64 id;
};
struct cgroup {
	struct kernfs_node *kn;
};

struct sched_info {
	unsigned long long run_delay;
};

/* 5.11 and later: one bit for each system call */
struct action_cache {
	unsigned long allow_native[8];
	unsigned long allow_compat[8];
};
struct seccomp_filter {
	struct action_cache cache;
};
struct seccomp {
	struct seccomp_filter *filter;
};

struct task_struct {
	struct thread_info thread_info;
	struct sched_info sched_info;
	void *stack;
	unsigned int flags;
	struct list_head tasks;
	struct mm_struct *mm;
	int exit_code;
	int exit_signal;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct list_head thread_node;
	int *clear_child_tid;
	void *robust_list;
	struct signal_struct *signal;
	struct fs_struct *fs;
	struct files_struct *files;
	struct pid *thread_pid;
	struct hlist_node pid_links[4];
	int pagefault_disabled;
	unsigned long nvcsw;
	struct task_rss_stat rss_stat;
	struct seccomp seccomp;
	struct thread_struct thread;
};

struct linux_binprm {
	unsigned int secureexec : 1;
	const char *filename;
};

struct sigaction {
	void *sa_handler;
};
struct sigfault {
	void *_addr;
};
union __sifields {
	struct sigfault _sigfault;
};
struct kernel_siginfo {
	int si_code;
	union __sifields _sifields;
};
struct k_sigaction {
	struct sigaction sa;
};

#pragma clang attribute pop

/* Values come from the running kernel; those here only have to exist */
enum pageflags {
	PG_referenced = 1,
	PG_head = 2,
	PG_young = 3,
	PG_anon_exclusive = 4,
};
enum pagetype {
	PGTY_hugetlb = 1,
};
enum scan_result {
	SCAN_SUCCEED = 1,
	SCAN_PTE_MAPPED_HUGEPAGE = 2,
};
enum compound_dtor_id {
	HUGETLB_PAGE_DTOR = 1,
};

#endif
