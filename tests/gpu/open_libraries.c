/* Opens each library of its arguments, by its name: one line each, `opened NAME` or `refused NAME: why`. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **names)
{
    for (int i = 1; i < count; i++) {
        if (dlopen(names[i], RTLD_LAZY) != NULL)
            printf("opened %s\n", names[i]);
        else
            printf("refused %s: %s\n", names[i], dlerror());
    }
    return 0;
}
