/* A libnvidia-ml.so.1 without a GPU: what the tests' programs load through nvidia-ml-py's own path.
 *
 * Environment:
 *   FAKE_NVML_DEVICES=8          cards (default 2)
 *   FAKE_NVML_MIG=1:2            card 1 is cut into 2 slices
 *   FAKE_NVML_LOST=0:40          card 0 answers 40 times, then is lost
 *   FAKE_NVML_HANG=0:40:2.5      card 0 answers 40 times, then not for 2.5 s, then again
 *   FAKE_NVML_NO_DRIVER=1        the library is there, the driver is not
 *   FAKE_NVML_NO_ECC=1           cards without ECC memory
 *   FAKE_NVML_XID=1:79           the driver reports XID 79 of card 1, once
 *   FAKE_NVML_NO_EVENTS=cards    no card's events can be watched; with "all" there are no events at all
 *   FAKE_NVML_FLAKY=1            each second question for the power fails
 *   FAKE_NVML_LOG=path           "init" and "shutdown", a line each time
 * Compiled with -DOLD it lacks the functions that drivers before 510 lack.
 *
 * Card i has used i + 1 GiB of 80 GiB, draws 100 + i W, and has sent 1000 * (i + 1) bytes; energy grows by 1 J with each
 * question for it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS, UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND = 6, NO_DRIVER = 9, TIMED_OUT, LOST = 15, UNKNOWN = 999 };
enum { MOST = 64 };
#define GIB (1ull << 30)

typedef struct Device {
    int index, slice; /* slice is -1 for a card */
    long answers;
    int hung, powers;
    unsigned long long millijoules;
} Device;

static Device cards[MOST], slices[MOST][8];
static int count, initialised, xid_given;

static long number(const char *name, long otherwise) {
    const char *given = getenv(name);
    return given && *given ? atol(given) : otherwise;
}

static void note(const char *what) {
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", what);
        fclose(file);
    }
}

static void rest(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left)) {
    }
}

/* What every question to a device goes through. */
static int answer(Device *device) {
    int card;
    long after;
    double seconds;
    const char *lost = getenv("FAKE_NVML_LOST"), *hang = getenv("FAKE_NVML_HANG");
    if (!initialised)
        return UNINITIALIZED;
    device->answers++;
    if (lost && sscanf(lost, "%d:%ld", &card, &after) == 2 && card == device->index && device->answers > after)
        return LOST;
    if (hang && sscanf(hang, "%d:%ld:%lf", &card, &after, &seconds) == 3 && card == device->index &&
        device->answers > after && !device->hung) {
        device->hung = 1;
        rest(seconds);
    }
    return SUCCESS;
}

#define ASK(device)                                                                                                    \
    do {                                                                                                               \
        int refused = answer(device);                                                                                  \
        if (refused)                                                                                                   \
            return refused;                                                                                            \
    } while (0)
#define WHOLE(device)                                                                                                  \
    do {                                                                                                               \
        ASK(device);                                                                                                   \
        if ((device)->slice >= 0)                                                                                      \
            return NOT_SUPPORTED;                                                                                      \
    } while (0)

static int slices_of(int card) {
    int given, many;
    const char *mig = getenv("FAKE_NVML_MIG");
    return mig && sscanf(mig, "%d:%d", &given, &many) == 2 && given == card ? many : 0;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (number("FAKE_NVML_NO_DRIVER", 0))
        return NO_DRIVER;
    note("init");
    count = (int)number("FAKE_NVML_DEVICES", 2);
    for (int i = 0; i < count && !initialised; i++) {
        cards[i].index = i;
        cards[i].slice = -1;
        for (int j = 0; j < 8; j++) {
            slices[i][j].index = i;
            slices[i][j].slice = j;
        }
    }
    initialised++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!initialised)
        return UNINITIALIZED;
    initialised--;
    note("shutdown");
    return SUCCESS;
}

const char *nvmlErrorString(int result) {
    (void)result;
    return "fake error";
}

int nvmlDeviceGetCount_v2(unsigned *found) {
    *found = (unsigned)count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **found) {
    if ((int)index >= count)
        return INVALID;
    *found = &cards[index];
    return answer(*found);
}

int nvmlDeviceGetUUID(Device *device, char *text, unsigned length) {
    if (device->slice < 0)
        snprintf(text, length, "GPU-0000000%d-fake", device->index);
    else
        snprintf(text, length, "MIG-0000000%d-%d-fake", device->index, device->slice);
    return answer(device);
}

int nvmlDeviceGetName(Device *device, char *text, unsigned length) {
    snprintf(text, length, device->slice < 0 ? "Fake H100 80GB" : "Fake H100 80GB MIG 1g.10gb");
    return answer(device);
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    WHOLE(device);
    *current = *pending = slices_of(device->index) > 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *most) {
    WHOLE(device);
    *most = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **found) {
    WHOLE(device);
    if ((int)index >= slices_of(device->index))
        return NOT_FOUND;
    *found = &slices[device->index][index];
    return SUCCESS;
}

typedef struct { unsigned gpu, memory; } Utilization;

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *found) {
    WHOLE(device);
    if (slices_of(device->index))
        return NOT_SUPPORTED;
    found->gpu = (unsigned)(10 * device->index + device->answers % 10);
    found->memory = 25;
    return SUCCESS;
}

static int some_utilization(Device *device, unsigned *found, unsigned *period) {
    WHOLE(device);
    *found = 0;
    *period = 100000;
    return SUCCESS;
}

int nvmlDeviceGetEncoderUtilization(Device *device, unsigned *found, unsigned *period) {
    return some_utilization(device, found, period);
}

int nvmlDeviceGetDecoderUtilization(Device *device, unsigned *found, unsigned *period) {
    return some_utilization(device, found, period);
}

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;

static unsigned long long total_of(const Device *device) { return device->slice < 0 ? 80 * GIB : 10 * GIB; }

int nvmlDeviceGetMemoryInfo(Device *device, Memory *found) {
    ASK(device);
    found->total = total_of(device);
    found->used = (unsigned long long)(device->index + 2) * GIB; /* one of them reserved */
    found->free = found->total - found->used;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    WHOLE(device);
    *milliwatts = 100000u + 1000u * (unsigned)device->index;
    if (number("FAKE_NVML_FLAKY", 0) && ++device->powers % 2 == 0)
        return UNKNOWN;
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *milliwatts) {
    WHOLE(device);
    *milliwatts = 700000;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius) {
    WHOLE(device);
    *celsius = 40u + (unsigned)device->index + sensor;
    return SUCCESS;
}

int nvmlDeviceGetTemperatureThreshold(Device *device, unsigned which, unsigned *celsius) {
    WHOLE(device);
    *celsius = 89 + which;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(Device *device, unsigned type, unsigned counter, unsigned long long *found) {
    (void)counter;
    WHOLE(device);
    if (number("FAKE_NVML_NO_ECC", 0))
        return NOT_SUPPORTED;
    *found = type ? 0 : 3;
    return SUCCESS;
}

int nvmlDeviceGetPcieReplayCounter(Device *device, unsigned *found) {
    WHOLE(device);
    *found = 7;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device *device, unsigned type, unsigned *megahertz) {
    WHOLE(device);
    *megahertz = type == 2 ? 2619 : 1980;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons) {
    WHOLE(device);
    *reasons = 0x04 | 0x01; /* the power cap; and idle, which is none */
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) {
    static int only;
    const char *none = getenv("FAKE_NVML_NO_EVENTS");
    *set = &only;
    return none && !strcmp(none, "all") ? NOT_SUPPORTED : initialised ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, void *set) {
    (void)types;
    (void)set;
    WHOLE(device);
    return getenv("FAKE_NVML_NO_EVENTS") ? NOT_SUPPORTED : SUCCESS;
}

typedef struct { Device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;

int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
    int card, xid;
    const char *given = getenv("FAKE_NVML_XID");
    (void)set;
    (void)milliseconds;
    if (!given || xid_given || sscanf(given, "%d:%d", &card, &xid) != 2)
        return TIMED_OUT;
    xid_given = 1;
    memset(event, 0, sizeof *event);
    event->device = &cards[card];
    event->type = 8;
    event->data = (unsigned long long)xid;
    return SUCCESS;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    return SUCCESS;
}

#ifndef OLD
typedef struct { unsigned version, sensor; int celsius; } Temperature;

int nvmlDeviceGetTemperatureV(Device *device, Temperature *found) {
    WHOLE(device);
    found->celsius = 40 + device->index;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *found) {
    ASK(device);
    found->total = total_of(device);
    found->reserved = GIB;
    found->used = (unsigned long long)(device->index + 1) * GIB;
    found->free = found->total - found->reserved - found->used;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *found) {
    WHOLE(device);
    *found = device->millijoules += 1000;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    uint32_t type, result;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } value;
} Field;

int nvmlDeviceGetFieldValues(Device *device, int many, Field *fields) {
    WHOLE(device);
    for (Field *field = fields; field < fields + many; field++) {
        field->result = SUCCESS;
        field->type = 3;
        switch (field->field) {
        case 82: /* the memory's temperature */
            field->type = 1;
            field->value.ui = 55;
            break;
        case 138: /* NVLink, KiB sent; and received */
        case 139:
            field->value.ull = field->scope == UINT32_MAX ? 2 : 1;
            break;
        case 197: /* PCIe, bytes sent; and received */
            field->value.ull = 1000ull * (unsigned)(device->index + 1);
            break;
        case 198:
            field->value.ull = 5000;
            break;
        default:
            field->result = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}
#endif
