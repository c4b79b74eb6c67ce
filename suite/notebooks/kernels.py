"""Kernels that are forked from one process, which has imported what chapters need, once for all."""

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

PRELOADED = "suite.chapter torchvision suite.notebooks.kernels suite.store.preloaded".split()


def _run_kernel(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Be a kernel; it ends with the process that has asked for it."""
    os.setsid()  # signals reach what the kernel starts, too
    os.chdir(folder)
    os.environ |= environment
    threading.Thread(target=_end_with_parent, daemon=True).start()
    IPKernelApp.launch_instance(arguments)


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    os._exit(1)


class _Process(multiprocessing.get_context("forkserver").Process):  # type: ignore[misc]
    """A forked kernel, with what `subprocess.Popen` has, too."""

    stdin = stdout = stderr = None

    def poll(self) -> Any:
        """Return the exit code, None while it runs."""
        return self.exitcode

    def wait(self) -> Any:
        """Wait for its end and return the exit code."""
        self.join()
        return self.exitcode


class _Forked(LocalProvisioner):
    async def launch_kernel(self, cmd: list[str], **options: Any) -> Any:
        # Read when matplotlib is imported, which is before there is a kernel.
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        folder = str(options.get("cwd") or Path.cwd())
        arguments = cmd[cmd.index("-f") :], dict(options["env"]), folder
        self.process = process = _Process(target=_run_kernel, args=arguments)
        process.start()
        self.pid = self.pgid = process.pid  # of a group of its own, to which signals go
        return self.connection_info


class Kernels(AsyncKernelManager):
    """Starts kernels that are forked."""

    async def _async_pre_start_kernel(self, **options: Any) -> Any:
        self.provisioner = _Forked(kernel_spec=self.kernel_spec, parent=self)
        return await super()._async_pre_start_kernel(**options)
