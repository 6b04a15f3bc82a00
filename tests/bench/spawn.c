/* Times programs the way a runtime starts them: posix_spawn to waitpid, nothing else in between.
 *
 * Python's own spawn costs more than what is measured here, hence C. All commands take turns, so
 * that a slow moment of the machine hits all of them alike.
 *
 * Standard input is a plan, one word a line: a letter, a blank, a value.
 *   r N     rounds (first line)
 *   c NAME  begins a command; the lines that follow are about it
 *   a WORD  argument (the first one is the program, an absolute path)
 *   e N=V   environment variable (there are no others)
 *   i PATH  standard input (default /dev/null)
 *   f FROM  before each start, untimed: copy FROM ...
 *   t TO    ... to TO
 * Standard output: "NAME NANOSECONDS" a start. A start that fails ends the run with status 1.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COMMANDS = 16, WORDS = 32 };

struct command {
    char *name, *input;
    char *argv[WORDS + 1], *envp[WORDS + 1], *from[WORDS], *to[WORDS];
    int args, vars, copies;
};

static struct command commands[COMMANDS];
static int count, rounds;

static void fail(const char *what, const char *which)
{
    fprintf(stderr, "spawn: %s: %s\n", what, which);
    exit(1);
}

static void read_plan(void)
{
    char line[4096];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        char *value = strdup(line + 2);
        struct command *now = &commands[count ? count - 1 : 0];
        if (now->args == WORDS || now->vars == WORDS || now->copies == WORDS)
            fail("too many words", value);
        switch (line[0]) {
        case 'r': rounds = atoi(value); break;
        case 'c':
            if (count == COMMANDS) fail("too many commands", value);
            commands[count].input = "/dev/null";
            commands[count++].name = value;
            break;
        case 'a': now->argv[now->args++] = value; break;
        case 'e': now->envp[now->vars++] = value; break;
        case 'i': now->input = value; break;
        case 'f': now->from[now->copies] = value; break;
        case 't': now->to[now->copies++] = value; break;
        default: fail("unknown line", line);
        }
    }
}

static void copy(const char *from, const char *to)
{
    struct stat st;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) < 0) fail("cannot read", from);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (out < 0 || sendfile(out, in, NULL, st.st_size) != st.st_size) fail("cannot write", to);
    close(in);
    close(out);
}

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void measure(const struct command *command)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status;

    for (int i = 0; i < command->copies; i++) copy(command->from[i], command->to[i]);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, command->input, O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    long long begin = now_ns();
    if (posix_spawn(&pid, command->argv[0], &actions, NULL, command->argv, command->envp) != 0)
        fail("cannot start", command->argv[0]);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        fail("ended with an error", command->name);
    printf("%s %lld\n", command->name, now_ns() - begin);
    posix_spawn_file_actions_destroy(&actions);
}

int main(void)
{
    read_plan();
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < count; i++) measure(&commands[i]);
    return 0;
}
