"""Kernels that are forked from one process, which has imported the modules of chapters."""

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
    """Run a kernel, which ends with the process that started it."""
    os.setsid()  # signals reach the children of the kernel too
    os.chdir(folder)
    os.environ |= environment
    threading.Thread(target=_end_with_parent, daemon=True).start()
    IPKernelApp.launch_instance(arguments)


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    os._exit(1)


class _Process(multiprocessing.get_context("forkserver").Process):  # type: ignore[misc]
    """A forked kernel, with the interface of `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def poll(self) -> Any:
        """Return the exit code, or None while the kernel runs."""
        return self.exitcode

    def wait(self) -> Any:
        """Wait for the end and return the exit code."""
        self.join()
        return self.exitcode


class _Forked(LocalProvisioner):
    async def launch_kernel(self, cmd: list[str], **options: Any) -> Any:
        # Matplotlib reads it at its import, before there is a kernel.
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        folder = str(options.get("cwd") or Path.cwd())
        arguments = cmd[cmd.index("-f") :], dict(options["env"]), folder
        self.process = process = _Process(target=_run_kernel, args=arguments)
        process.start()
        self.pid = self.pgid = process.pid  # its own process group, which gets the signals
        return self.connection_info


class Kernels(AsyncKernelManager):
    """Starts kernels that are forked."""

    async def _async_pre_start_kernel(self, **options: Any) -> Any:
        self.provisioner = _Forked(kernel_spec=self.kernel_spec, parent=self)
        return await super()._async_pre_start_kernel(**options)
