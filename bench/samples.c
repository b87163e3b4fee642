/* Linked to the floor with -Wl,--wrap=qsort: it sorts its times before it prints their p50, and that is the moment to
 * keep them all, so that the rounds of a bench can be put together. One line for each row, into the file that
 * FLOOR_SAMPLES names. The floor's source and what it times stay as they are. */
#include <stdio.h>
#include <stdlib.h>

typedef int order(const void *, const void *);
void __real_qsort(void *base, size_t count, size_t size, order *by);

void __wrap_qsort(void *base, size_t count, size_t size, order *by) {
  const char *path = getenv("FLOOR_SAMPLES");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (file) {
    for (size_t i = 0; i < count; i++) fprintf(file, "%.1f ", ((double *)base)[i]);
    fputc('\n', file);
    fclose(file);
  }
  __real_qsort(base, count, size, by);
}
