"""Tries attacks that uploaded code may try in a function. The result names each attack that worked."""
import ctypes, glob, json, os, resource, signal, socket, subprocess, sys

task = json.load(sys.stdin)
params = task["params"]
wanted = [text.encode() for text in params["wanted"]]
got = []


def tries(name):
    def run(attempt):
        try:
            if attempt():
                got.append(name)
        except (OSError, ValueError, subprocess.SubprocessError):
            pass
    return run


def holds(data):
    return any(text in data for text in wanted)


def read(path):
    with open(path, "rb") as file:
        return file.read()


@tries("its own environment")
def _():
    return holds(json.dumps(dict(os.environ)).encode()) or any(name.startswith("AWS_") for name in os.environ)


@tries("an environment of another process")
def _():
    found = False
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            found = found or holds(read(path))
        except OSError:
            pass
    return found


@tries("open files of its parent")
def _():
    return os.listdir(f"/proc/{os.getppid()}/fd")


@tries("memory of its parent")
def _():
    for line in read(f"/proc/{os.getppid()}/maps").decode().splitlines():
        os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY)
        return line


libc = ctypes.CDLL(None, use_errno=True)


@tries("to trace its parent")
def _():
    return libc.ptrace(16, os.getppid(), 0, 0) == 0  # PTRACE_ATTACH


@tries("to read its parent by process_vm_readv")
def _():
    buffer = ctypes.create_string_buffer(8)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_size_t * 2)(params["address"], 8)
    return libc.process_vm_readv(os.getppid(), vector, 1, remote, 1, 0) > 0


@tries("files that hold them")
def _():
    for folder, _, names in os.walk(params["folder"]):
        for name in names:
            if name != "task.json" and holds(read(os.path.join(folder, name))):
                return True


@tries("what the task before left")
def _():
    return glob.glob(os.path.join(params["folder"], "left-*"))


@tries("the Runtime API")
def _():
    host, port = params["runtime_api"].split(":")
    socket.create_connection((host, int(port)), timeout=5)
    return True


@tries("a socket of any sort")
def _():
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 16):
        try:
            socket.socket(family, socket.SOCK_DGRAM)
            return True
        except OSError:
            pass


@tries("limits of its parent")
def _():
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (10, 10))
    return True


@tries("to be another user")
def _():
    os.setuid(0)
    return True


@tries("a session of its own")
def _():
    subprocess.run(["sleep", "0"], start_new_session=True, check=True)
    return True


@tries("a process group of its own")
def _():
    os.setpgid(0, 0) if os.getpid() != os.getpgrp() else None
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


# What it leaves behind: a process, and a file beside its folder.
stays = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
with open(os.path.join(params["folder"], f"left-{os.getpid()}"), "w") as file:
    file.write("for the next")
os.makedirs(os.path.join(params["folder"], "left-folder"), exist_ok=True)
os.chmod(os.path.join(params["folder"], "left-folder"), 0)

with open(os.path.join(task["outputs"][0]["dir"], "n.csv"), "w") as file:
    file.write("n\n1\n")
print(json.dumps({"result": {"got": got, "uid": os.getuid(), "stays": stays.pid}}))
