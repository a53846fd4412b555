"""System call names and numbers, and which of them a program in the sandbox may make.

ALLOWED is a list, not a filter of known evils: a call that a later kernel adds is refused until it is
listed. DENIED calls answer EPERM, so that programs say "not permitted"; all others answer ENOSYS, for which
libraries have a fallback. Some calls are judged by their arguments in seccomp.py, which comes first. Numbers:
asm/unistd_64.h, asm-generic/unistd.h."""

ALLOWED = """
read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask
rt_sigreturn pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise dup
dup2 pause nanosleep getitimer alarm setitimer getpid sendfile connect accept sendto recvfrom sendmsg
recvmsg shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt fork vfork execve
exit wait4 kill uname fcntl flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename
mkdir rmdir creat link unlink symlink readlink chmod fchmod chown fchown lchown umask gettimeofday
getrlimit getrusage sysinfo times getuid getgid setuid setgid geteuid getegid setpgid getppid getpgrp
setsid setreuid setregid getgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid
getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod
statfs fstatfs getpriority setpriority sched_getparam sched_setscheduler sched_getscheduler
sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall
prctl arch_prctl setrlimit sync gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr
listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity
sched_getaffinity epoll_create getdents64 set_tid_address restart_syscall fadvise64 timer_create
timer_settime timer_gettime timer_getoverrun timer_delete clock_gettime clock_getres clock_nanosleep
exit_group epoll_wait epoll_ctl tgkill utimes waitid openat mkdirat mknodat fchownat futimesat newfstatat
unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll set_robust_list
get_robust_list splice tee sync_file_range utimensat epoll_pwait signalfd timerfd_create eventfd fallocate
timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3 pipe2 preadv pwritev
rt_tgsigqueueinfo recvmmsg syncfs sendmmsg getcpu sched_setattr sched_getattr renameat2 getrandom execveat
membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx rseq
close_range openat2 faccessat2 epoll_pwait2 pidfd_open pidfd_send_signal futex_waitv get_mempolicy
""".split()

DENIED = """
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd mount umount2
pivot_root chroot mount_setattr open_tree move_mount fsopen fsconfig fsmount fspick setns unshare bpf
perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key
init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct quotactl
quotactl_fd syslog sethostname setdomainname settimeofday clock_settime clock_adjtime adjtimex
open_by_handle_at name_to_handle_at fanotify_init fanotify_mark lookup_dcookie iopl ioperm modify_ldt
personality vhangup nfsservctl shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd
msgrcv msgctl mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr memfd_create
memfd_secret migrate_pages move_pages mbind set_mempolicy set_mempolicy_home_node landlock_create_ruleset
landlock_add_rule landlock_restrict_self inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
seccomp setgroups ioprio_set vmsplice uselib ustat sysfs _sysctl
""".split()

_X86_64 = """
read=0 write=1 open=2 close=3 stat=4 fstat=5 lstat=6 poll=7 lseek=8 mmap=9 mprotect=10 munmap=11 brk=12
rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 pread64=17 pwrite64=18 readv=19 writev=20 access=21
pipe=22 select=23 sched_yield=24 mremap=25 msync=26 mincore=27 madvise=28 dup=32 dup2=33 pause=34
nanosleep=35 getitimer=36 alarm=37 setitimer=38 getpid=39 sendfile=40 connect=42 accept=43 sendto=44
recvfrom=45 sendmsg=46 recvmsg=47 shutdown=48 bind=49 listen=50 getsockname=51 getpeername=52
socketpair=53 setsockopt=54 getsockopt=55 fork=57 vfork=58 execve=59 exit=60 wait4=61 kill=62 uname=63
fcntl=72 flock=73 fsync=74 fdatasync=75 truncate=76 ftruncate=77 getdents=78 getcwd=79 chdir=80 fchdir=81
rename=82 mkdir=83 rmdir=84 creat=85 link=86 unlink=87 symlink=88 readlink=89 chmod=90 fchmod=91 chown=92
fchown=93 lchown=94 umask=95 gettimeofday=96 getrlimit=97 getrusage=98 sysinfo=99 times=100 getuid=102
getgid=104 setuid=105 setgid=106 geteuid=107 getegid=108 setpgid=109 getppid=110 getpgrp=111 setsid=112
setreuid=113 setregid=114 getgroups=115 setresuid=117 getresuid=118 setresgid=119 getresgid=120
getpgid=121 setfsuid=122 setfsgid=123 getsid=124 capget=125 capset=126 rt_sigpending=127
rt_sigtimedwait=128 rt_sigqueueinfo=129 rt_sigsuspend=130 sigaltstack=131 utime=132 mknod=133 statfs=137
fstatfs=138 getpriority=140 setpriority=141 sched_getparam=143 sched_setscheduler=144
sched_getscheduler=145 sched_get_priority_max=146 sched_get_priority_min=147 sched_rr_get_interval=148
mlock=149 munlock=150 mlockall=151 munlockall=152 prctl=157 arch_prctl=158 setrlimit=160 sync=162
gettid=186 readahead=187 setxattr=188 lsetxattr=189 fsetxattr=190 getxattr=191 lgetxattr=192 fgetxattr=193
listxattr=194 llistxattr=195 flistxattr=196 removexattr=197 lremovexattr=198 fremovexattr=199 tkill=200
time=201 futex=202 sched_setaffinity=203 sched_getaffinity=204 epoll_create=213 getdents64=217
set_tid_address=218 restart_syscall=219 fadvise64=221 timer_create=222 timer_settime=223 timer_gettime=224
timer_getoverrun=225 timer_delete=226 clock_gettime=228 clock_getres=229 clock_nanosleep=230
exit_group=231 epoll_wait=232 epoll_ctl=233 tgkill=234 utimes=235 waitid=247 inotify_init=253
inotify_add_watch=254 inotify_rm_watch=255 openat=257 mkdirat=258 mknodat=259 fchownat=260 futimesat=261
newfstatat=262 unlinkat=263 renameat=264 linkat=265 symlinkat=266 readlinkat=267 fchmodat=268
faccessat=269 pselect6=270 ppoll=271 set_robust_list=273 get_robust_list=274 splice=275 tee=276
sync_file_range=277 utimensat=280 epoll_pwait=281 signalfd=282 timerfd_create=283 eventfd=284
fallocate=285 timerfd_settime=286 timerfd_gettime=287 accept4=288 signalfd4=289 eventfd2=290
epoll_create1=291 dup3=292 pipe2=293 inotify_init1=294 preadv=295 pwritev=296 rt_tgsigqueueinfo=297
recvmmsg=299 syncfs=306 sendmmsg=307 getcpu=309 sched_setattr=314 sched_getattr=315 renameat2=316
getrandom=318 execveat=322 membarrier=324 mlock2=325 copy_file_range=326 preadv2=327 pwritev2=328
pkey_mprotect=329 pkey_alloc=330 pkey_free=331 statx=332 rseq=334 close_range=436 openat2=437
faccessat2=439 epoll_pwait2=441 pidfd_open=434 pidfd_send_signal=424 futex_waitv=449 get_mempolicy=239
clone=56 clone3=435 socket=41 prlimit64=302 ioctl=16 ptrace=101 process_vm_readv=310 process_vm_writev=311
process_madvise=440 process_mrelease=448 kcmp=312 pidfd_getfd=438 mount=165 umount2=166 pivot_root=155
chroot=161 mount_setattr=442 open_tree=428 move_mount=429 fsopen=430 fsconfig=431 fsmount=432 fspick=433
setns=308 unshare=272 bpf=321 perf_event_open=298 userfaultfd=323 io_uring_setup=425 io_uring_enter=426
io_uring_register=427 keyctl=250 add_key=248 request_key=249 init_module=175 finit_module=313
delete_module=176 kexec_load=246 kexec_file_load=320 reboot=169 swapon=167 swapoff=168 acct=163
quotactl=179 quotactl_fd=443 syslog=103 sethostname=170 setdomainname=171 settimeofday=164
clock_settime=227 clock_adjtime=305 adjtimex=159 open_by_handle_at=304 name_to_handle_at=303
fanotify_init=300 fanotify_mark=301 lookup_dcookie=212 iopl=172 ioperm=173 modify_ldt=154 personality=135
vhangup=153 nfsservctl=180 shmget=29 shmat=30 shmctl=31 shmdt=67 semget=64 semop=65 semctl=66
semtimedop=220 msgget=68 msgsnd=69 msgrcv=70 msgctl=71 mq_open=240 mq_unlink=241 mq_timedsend=242
mq_timedreceive=243 mq_notify=244 mq_getsetattr=245 memfd_create=319 memfd_secret=447 migrate_pages=256
move_pages=279 mbind=237 set_mempolicy=238 set_mempolicy_home_node=450 landlock_create_ruleset=444
landlock_add_rule=445 landlock_restrict_self=446 seccomp=317 setgroups=116 ioprio_set=251 vmsplice=278
uselib=134 ustat=136 sysfs=139 _sysctl=156
"""

_AARCH64 = """
read=63 write=64 close=57 fstat=80 lseek=62 mmap=222 mprotect=226 munmap=215 brk=214 rt_sigaction=134
rt_sigprocmask=135 rt_sigreturn=139 pread64=67 pwrite64=68 readv=65 writev=66 sched_yield=124 mremap=216
msync=227 mincore=232 madvise=233 dup=23 nanosleep=101 getitimer=102 setitimer=103 getpid=172 sendfile=71
connect=203 accept=202 sendto=206 recvfrom=207 sendmsg=211 recvmsg=212 shutdown=210 bind=200 listen=201
getsockname=204 getpeername=205 socketpair=199 setsockopt=208 getsockopt=209 execve=221 exit=93 wait4=260
kill=129 uname=160 fcntl=25 flock=32 fsync=82 fdatasync=83 truncate=45 ftruncate=46 getcwd=17 chdir=49
fchdir=50 fchmod=52 fchown=55 umask=166 gettimeofday=169 getrlimit=163 getrusage=165 sysinfo=179 times=153
getuid=174 getgid=176 setuid=146 setgid=144 geteuid=175 getegid=177 setpgid=154 getppid=173 setsid=157
setreuid=145 setregid=143 getgroups=158 setresuid=147 getresuid=148 setresgid=149 getresgid=150
getpgid=155 setfsuid=151 setfsgid=152 getsid=156 capget=90 capset=91 rt_sigpending=136 rt_sigtimedwait=137
rt_sigqueueinfo=138 rt_sigsuspend=133 sigaltstack=132 statfs=43 fstatfs=44 getpriority=141 setpriority=140
sched_getparam=121 sched_setscheduler=119 sched_getscheduler=120 sched_get_priority_max=125
sched_get_priority_min=126 sched_rr_get_interval=127 mlock=228 munlock=229 mlockall=230 munlockall=231
prctl=167 setrlimit=164 sync=81 gettid=178 readahead=213 setxattr=5 lsetxattr=6 fsetxattr=7 getxattr=8
lgetxattr=9 fgetxattr=10 listxattr=11 llistxattr=12 flistxattr=13 removexattr=14 lremovexattr=15
fremovexattr=16 tkill=130 futex=98 sched_setaffinity=122 sched_getaffinity=123 getdents64=61
set_tid_address=96 restart_syscall=128 fadvise64=223 timer_create=107 timer_settime=110 timer_gettime=108
timer_getoverrun=109 timer_delete=111 clock_gettime=113 clock_getres=114 clock_nanosleep=115 exit_group=94
epoll_ctl=21 tgkill=131 waitid=95 inotify_add_watch=27 inotify_rm_watch=28 openat=56 mkdirat=34 mknodat=33
fchownat=54 newfstatat=79 unlinkat=35 renameat=38 linkat=37 symlinkat=36 readlinkat=78 fchmodat=53
faccessat=48 pselect6=72 ppoll=73 set_robust_list=99 get_robust_list=100 splice=76 tee=77
sync_file_range=84 utimensat=88 epoll_pwait=22 timerfd_create=85 fallocate=47 timerfd_settime=86
timerfd_gettime=87 accept4=242 signalfd4=74 eventfd2=19 epoll_create1=20 dup3=24 pipe2=59 inotify_init1=26
preadv=69 pwritev=70 rt_tgsigqueueinfo=240 recvmmsg=243 syncfs=267 sendmmsg=269 getcpu=168
sched_setattr=274 sched_getattr=275 renameat2=276 getrandom=278 execveat=281 membarrier=283 mlock2=284
copy_file_range=285 preadv2=286 pwritev2=287 pkey_mprotect=288 pkey_alloc=289 pkey_free=290 statx=291
rseq=293 close_range=436 openat2=437 faccessat2=439 epoll_pwait2=441 pidfd_open=434 pidfd_send_signal=424
futex_waitv=449 get_mempolicy=236 clone=220 clone3=435 socket=198 prlimit64=261 ioctl=29 ptrace=117
process_vm_readv=270 process_vm_writev=271 process_madvise=440 process_mrelease=448 kcmp=272
pidfd_getfd=438 mount=40 umount2=39 pivot_root=41 chroot=51 mount_setattr=442 open_tree=428 move_mount=429
fsopen=430 fsconfig=431 fsmount=432 fspick=433 setns=268 unshare=97 bpf=280 perf_event_open=241
userfaultfd=282 io_uring_setup=425 io_uring_enter=426 io_uring_register=427 keyctl=219 add_key=217
request_key=218 init_module=105 finit_module=273 delete_module=106 kexec_load=104 kexec_file_load=294
reboot=142 swapon=224 swapoff=225 acct=89 quotactl=60 quotactl_fd=443 syslog=116 sethostname=161
setdomainname=162 settimeofday=170 clock_settime=112 clock_adjtime=266 adjtimex=171 open_by_handle_at=265
name_to_handle_at=264 fanotify_init=262 fanotify_mark=263 lookup_dcookie=18 personality=92 vhangup=58
nfsservctl=42 shmget=194 shmat=196 shmctl=195 shmdt=197 semget=190 semop=193 semctl=191 semtimedop=192
msgget=186 msgsnd=189 msgrcv=188 msgctl=187 mq_open=180 mq_unlink=181 mq_timedsend=182 mq_timedreceive=183
mq_notify=184 mq_getsetattr=185 memfd_create=279 memfd_secret=447 migrate_pages=238 move_pages=239
mbind=235 set_mempolicy=237 set_mempolicy_home_node=450 landlock_create_ruleset=444 landlock_add_rule=445
landlock_restrict_self=446 seccomp=277 setgroups=159 ioprio_set=30 vmsplice=75
"""


def _numbers(table: str) -> dict[str, int]:
    return {name: int(number) for name, _, number in (entry.partition("=") for entry in table.split())}


NUMBERS = {"x86_64": _numbers(_X86_64), "aarch64": _numbers(_AARCH64)}
"""Machine name as in os.uname() -> name -> number."""
