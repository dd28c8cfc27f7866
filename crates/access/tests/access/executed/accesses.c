/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A plugin of the emulator that logs every access of the program and what lies there afterwards, `@ R|W address bytes contents`,
 * after the registers that the emulator itself logs before each instruction. Addresses are the emulator's own: it is started with
 * `-B 0`. Debian does not package qemu-plugin.h, so what is used of it is
 * declared here.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

int qemu_plugin_version = 1;

extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*cb)(uint64_t, void *));
extern size_t qemu_plugin_tb_n_insns(const void *tb);
extern void *qemu_plugin_tb_get_insn(const void *tb, size_t index);
extern void qemu_plugin_register_vcpu_mem_cb(void *insn,
	void (*cb)(unsigned, uint32_t, uint64_t, void *), int flags, int rw, void *data);
extern _Bool qemu_plugin_mem_is_store(uint32_t info);
extern unsigned qemu_plugin_mem_size_shift(uint32_t info);
extern void qemu_plugin_outs(const char *text);

static void accessed(unsigned cpu, uint32_t info, uint64_t address, void *data)
{
	unsigned bytes = 1u << qemu_plugin_mem_size_shift(info), length;
	unsigned char contents[64];
	struct iovec to = {contents, bytes}, from = {(void *)address, bytes};
	char line[64 + 2 * sizeof(contents)];

	(void)cpu;
	(void)data;
	length = snprintf(line, sizeof(line), "@ %c %" PRIx64 " %u ", qemu_plugin_mem_is_store(info) ? 'W' : 'R', address,
			  bytes);
	if (bytes <= sizeof(contents) && process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)bytes)
		for (unsigned i = 0; i < bytes; i++)
			length += snprintf(line + length, sizeof(line) - length, "%02x", contents[i]);
	snprintf(line + length, sizeof(line) - length, "\n");
	qemu_plugin_outs(line);
}

static void translated(uint64_t id, void *tb)
{
	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++)
		qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), accessed, 0, 3, NULL);
}

int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	(void)info;
	(void)argc;
	(void)argv;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
