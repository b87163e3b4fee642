/* Times a command: timer RUNS WARM GAP_MS COMMAND [ARGUMENT...]
 *
 * Prints the microseconds of each run, one a line, from before the spawn until the wait is over. WARM runs before them
 * do not count. A child is spawned without a copy of this small process, so that the timing adds next to nothing. What
 * the command prints goes nowhere; what it complains of comes out, and a code other than 0 ends everything. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static double once(char **command, posix_spawn_file_actions_t *files) {
  pid_t pid;
  int status;
  double start = now();
  int error = posix_spawnp(&pid, command[0], files, NULL, command, environ);
  if (error) {
    fprintf(stderr, "timer: %s: %s\n", command[0], strerror(error));
    exit(1);
  }
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) exit(1);
  double took = now() - start;
  if (status) {
    fprintf(stderr, "timer: %s ended with %s %d\n", command[0], WIFEXITED(status) ? "code" : "signal",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    exit(1);
  }
  return took;
}

int main(int argc, char **argv) {
  if (argc < 5) {
    fprintf(stderr, "usage: timer RUNS WARM GAP_MS COMMAND [ARGUMENT...]\n");
    return 2;
  }
  int runs = atoi(argv[1]), warm = atoi(argv[2]), gap = atoi(argv[3]);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
  double *took = malloc(sizeof(double) * (runs > 0 ? runs : 1));
  for (int i = -warm; i < runs; i++) {
    double one = once(argv + 4, &files);
    if (i >= 0) took[i] = one;
    if (gap) usleep(gap * 1000);
  }
  for (int i = 0; i < runs; i++) printf("%.1f\n", took[i]);
  return 0;
}
