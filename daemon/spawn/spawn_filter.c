/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_filter.c - see spawn_filter.h. */
#include "daemon/spawn/spawn_filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/cleanup.h"

#ifdef __aarch64__
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#define OTHER_ABI 0xffffffffu
#else
#define ARCHITECTURE AUDIT_ARCH_X86_64
#define OTHER_ABI 0x40000000u /* x32 calls are numbered from here */
#endif

#define NAMESPACES                                                                                                     \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

static const uint32_t denied[] = {
    /* other processes */
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_kcmp,
    SYS_process_madvise,
    SYS_perf_event_open,
    /* name spaces and mounts */
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_open_by_handle_at,
    /* the kernel's code, keys and tracing */
    SYS_bpf,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_fanotify_init,
    SYS_syslog,
    /* the machine */
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_quotactl,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_vhangup,
#ifdef __x86_64__
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
#endif
};

#define NUMBER offsetof(struct seccomp_data, nr)
#define FLAGS offsetof(struct seccomp_data, args[0]) /* lower half: both architectures are little-endian */

titan_status spawn_filter_set(struct titan_error *err)
{
    struct sock_filter program[13 + 2 * ARRAY_SIZE(denied)] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, NUMBER),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, OTHER_ABI, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        /* clone3 has its flags in memory, where a filter cannot see them. ENOSYS makes libc use clone() instead. */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    unsigned short n = 8;
    for (size_t i = 0; i < ARRAY_SIZE(denied); i++) {
        program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, denied[i], 0, 1);
        program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 2);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FLAGS);
    program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (uint32_t)NAMESPACES, 1, 0);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    titan_assert(n == ARRAY_SIZE(program));
    const struct sock_fprog filter = {.len = n, .filter = program};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0)
        return titan_fail_errno(err, "cannot set the filter of system calls");
    return TITAN_OK;
}
