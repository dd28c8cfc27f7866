// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* What a program is that begins, so that nobody has to look at it */

#define CS_32 0x23
#define LD_PRELO 0x4f4c4552505f444cull
#define MAX_VARIABLES 128
/* Whether a program loads libraries, as far as its first instruction shows: it is the loader's */
static __always_inline u32 is_static(struct task_struct *task, struct mm_struct *mm)
{
	u64 stack = (u64)BPF_CORE_READ(task, stack);
	struct pt_regs r;

	if (bpf_probe_read_kernel(&r, sizeof(r), (void *)(stack + KERNEL_STACK_BYTES - sizeof(r))))
		return 0;
	return r.cs == CS_32 ||
	       (r.ip >= BPF_CORE_READ(mm, start_code) && r.ip < BPF_CORE_READ(mm, end_code));
}

struct variables {
	char *text;
	u64 at, end, value;
	u32 unreadable;
};

/* The loops of this file are bpf_loop's: the verifier looks at their bodies once, where it took 30 ms to unroll them */
static long variable_step(u32 i, struct variables *v)
{
	char *text = v->text;
	long bytes;

	if (v->at >= v->end)
		return 1;
	bytes = bpf_probe_read_user_str(text, ARGUMENT_BYTES, (void *)v->at);
	if (bytes <= 0) {
		v->unreadable = 1;
		return 1;
	}
	if (*(u64 *)text == LD_PRELO && text[8] == 'A' && text[9] == 'D' && text[10] == '=') {
		v->value = v->at + 11;
		return 1;
	}
	/* Of a longer one this is a part, and the zero byte behind it is not there */
	v->at += bytes < ARGUMENT_BYTES ? bytes : ARGUMENT_BYTES - 1;
	return 0;
}

/* Looks for LD_PRELOAD among the variables; where its value is, 1: it is not among them, 0: there are too many */
static __always_inline u64 find_preload(char *text, struct mm_struct *mm)
{
	struct variables v = {
		.text = text,
		.at = BPF_CORE_READ(mm, env_start),
		.end = BPF_CORE_READ(mm, env_end),
	};

	bpf_loop(MAX_VARIABLES, variable_step, &v, 0);
	if (v.value)
		return v.value;
	return !v.unreadable && v.at >= v.end;
}

/* What it was given, and whether it will load our library */
static __always_inline void describe_program(struct rec_exec *rec, struct task_struct *task,
					     struct linux_binprm *program, struct settings *g)
{
	struct mm_struct *mm = BPF_CORE_READ(task, mm);
	char *arguments = rec->text + ARGUMENTS_AT, *variable = rec->text + VARIABLE_AT;
	u64 from = BPF_CORE_READ(mm, arg_start), bytes = BPF_CORE_READ(mm, arg_end) - from, fit = bytes, value;
	long found;

	rec->variable = 0;
	rec->flags = is_static(task, mm) ? EXEC_STATIC : 0;
	if (BPF_CORE_READ_BITFIELD_PROBED(program, secureexec))
		rec->flags |= EXEC_SECURE;
	if ((u64)BPF_CORE_READ(task, fs, root.dentry) != g->root ||
	    (u64)BPF_CORE_READ(task, fs, root.mnt) != g->root_mount)
		rec->flags |= EXEC_OTHER_ROOT;
	value = find_preload(arguments, mm);
	if (value == 1) {
		rec->flags |= EXEC_NO_PRELOAD;
		if (BPF_CORE_READ(mm, env_start) == BPF_CORE_READ(mm, env_end))
			rec->flags |= EXEC_NO_VARIABLES;
	} else if (value) {
		found = bpf_probe_read_user_str(variable, VARIABLE_BYTES, (void *)value);
		rec->flags |= EXEC_PRELOADS;
		if (found > 0)
			rec->variable = found;
	}
	rec->arguments = 0;
	/* A number that the verifier sees to fit */
	if (bytes >= ARGUMENT_BYTES)
		fit = ARGUMENT_BYTES - 1;
	barrier_var(fit);
	fit &= ARGUMENT_BYTES - 1;
	if (!bpf_probe_read_user(arguments, fit, (void *)from))
		rec->arguments = bytes;
}

#define MAX_FOLDERS 24

struct folders {
	char *text;
	struct dentry *root, *at;
	struct vfsmount *root_mount, *mount;
	u32 used, whole;
};

static long folder_step(u32 i, struct folders *f)
{
	struct dentry *at = f->at, *above = BPF_CORE_READ(at, d_parent);
	struct vfsmount *mount = f->mount;
	u64 used = f->used;
	long bytes;

	if (at == f->root && mount == f->root_mount) {
		f->whole = 1;
		return 1;
	}
	if (at == BPF_CORE_READ(mount, mnt_root)) {
		struct mount *whole = (void *)((u64)mount - bpf_core_field_offset(struct mount, mnt));
		struct mount *below = BPF_CORE_READ(whole, mnt_parent);

		if (below == whole)
			return 1;
		f->at = BPF_CORE_READ(whole, mnt_mountpoint);
		f->mount = (void *)((u64)below + bpf_core_field_offset(struct mount, mnt));
		return 0;
	}
	if (at == above)
		return 1;
	/* A number that the verifier sees to fit */
	barrier_var(used);
	if (used >= FILE_BYTES - NAME_BYTES)
		return 1;
	bytes = bpf_probe_read_kernel_str(f->text + used, NAME_BYTES, BPF_CORE_READ(at, d_name.name));
	if (bytes <= 0 || bytes == NAME_BYTES)
		return 1;
	f->used = used + bytes;
	f->at = above;
	return 0;
}

/*
 * Writes the names of the file that runs and of its folders, the innermost first and each with a zero byte behind it, as
 * they are below the process's root. Returns their bytes; 0 where the path is long, or leads to no root as that of a
 * file that was removed.
 */
static __always_inline u32 name_file(char *text, struct task_struct *task)
{
	struct dentry *file = BPF_CORE_READ(task, mm, exe_file, f_path.dentry);
	struct folders f = {
		.text = text,
		.root = BPF_CORE_READ(task, fs, root.dentry),
		.root_mount = BPF_CORE_READ(task, fs, root.mnt),
		.at = file,
		.mount = BPF_CORE_READ(task, mm, exe_file, f_path.mnt),
	};

	if (!BPF_CORE_READ(file, d_hash.pprev))
		return 0;
	bpf_loop(MAX_FOLDERS, folder_step, &f, 0);
	return f.whole ? f.used : 0;
}
