"""Real ranks under mpirun. From CMake: $MPIEXEC, $RANKS_PROGRAM, $DETENT."""

import os
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["RANKS_PROGRAM"]
PIECE = 16 << 20  # as in ranks.cpp
LAUNCHER = ("OMPI_", "PMI_", "PMIX_", "MV2_", "SLURM_", "PRTE_", "DETENT_MPI")
# What Open MPI 4 and 5 want in a container of few cores; other MPIs ignore it.
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # What MPI itself leaks and locks is not ours to mend.
    "ASAN_OPTIONS": "detect_leaks=0",
    "TSAN_OPTIONS": "detect_deadlocks=0:ignore_noninstrumented_modules=1",
}
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER)} | SETTINGS


def run(*command, **variables):
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=ENVIRONMENT | variables,
    )


def mpirun(ranks, *arguments):
    return run(os.environ["MPIEXEC"], "-n", ranks, PROGRAM, *arguments)


class Ranks(unittest.TestCase):
    def succeed(self, result):
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout + result.stderr)
        return result.stdout.splitlines()

    def test_gather_any_size_in_rank_order(self):
        for sizes in [5], [5, 0], [0, 1, 2 * PIECE + 5, PIECE], [9, PIECE - 1, 0, PIECE + 1]:
            with self.subTest(sizes=sizes):
                lines = self.succeed(mpirun(len(sizes), "gather", *sizes))
                self.assertEqual(lines, [f"rank {i}: {size} bytes" for i, size in enumerate(sizes)][1:])

    def test_gather_pieces_in_rank_order(self):
        for counts in [3], [5, 0], [2, 3, 0, 1]:
            with self.subTest(counts=counts):
                lines = self.succeed(mpirun(len(counts), "pieces", *counts))
                expected = [(rank, size + 1) for rank, count in enumerate(counts) if rank for size in range(count)]
                self.assertEqual(lines, [f"rank {rank}: {size} bytes" for rank, size in expected])

    def test_give_all_what_rank_0_has(self):
        sizes = [0, 7, PIECE + 5]
        for ranks in 1, 2, 4:
            with self.subTest(ranks=ranks):
                lines = self.succeed(mpirun(ranks, "broadcast", *sizes))
                self.assertEqual(sorted(lines), sorted(f"rank {r}: {s} bytes" for r in range(ranks) for s in sizes))

    def test_meet_at_a_barrier(self):
        for ranks in 1, 2, 4:
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                lines = self.succeed(mpirun(ranks, "barrier", folder))
                self.assertEqual(sorted(lines), [f"rank {i} of {ranks} done" for i in range(ranks)])

    def test_leave_the_core_to_others_while_they_wait(self):
        for share in self.succeed(mpirun(3, "idle")):
            self.assertLess(float(share), 0.25)

    def test_end_together(self):
        for how, failing in ("abort", 0), ("abort", 2), ("throw", 1), ("take", 0), ("exit", 2), ("kill", 0):
            with self.subTest(how=how, failing=failing):
                for _ in range(5):  # the launcher may have ended before it has read all that was printed
                    result = mpirun(3, "fail", how, failing)
                    self.assertNotEqual(result.returncode, 0)
                    if how != "abort" or "last words" in result.stdout:
                        break
                if how == "abort":  # which code arrives otherwise is up to the launcher
                    self.assertEqual(result.returncode, 42, result.stdout + result.stderr)
                    self.assertIn("last words", result.stdout)

    def test_load_no_mpi_when_alone(self):
        for result in run(PROGRAM, "maps"), mpirun(1, "maps"):
            self.assertNotIn("mpi", "\n".join(line for line in self.succeed(result) if ".so" in line))
        self.assertIn("libdetent_mpi.so", mpirun(2, "maps").stdout)

    def test_refuse_the_launcher_of_another_mpi(self):
        result = run(PROGRAM, "barrier", "/nowhere", PMI_SIZE="3")
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertIn("sees 1 of them", result.stderr)

    def test_the_binary_links_no_mpi(self):
        libraries = self.succeed(run("ldd", os.environ["DETENT"]))
        self.assertNotIn("mpi", "\n".join(line.split("/")[-1] for line in libraries))


if __name__ == "__main__":
    unittest.main()
