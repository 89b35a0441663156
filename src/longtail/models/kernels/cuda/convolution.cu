// The convolution, forward and as the gradient of its input; after pieces.cu.

static_assert(M % (16 * WARPS) == 0, "every warp has the same number of rows");

// As ``convolution`` in convolution.py, whose arguments these are: a run of ``per`` tiles a program. With ENTER, forward,
// norm, gamma and beta are those of the BatchNorm below.
KERNEL(THREADS) convolution(
    const u16* x, const u16* weight, u16* out, float* partial, const u16* below, const float* norm, const float* gamma,
    const float* beta, const u16* skip, const u16* seen, int pixels, int per) {
    SHARED(shared);
    unsigned char* weights = shared + 2 * TILE_BYTES;
    float* sums = reinterpret_cast<float*>(weights + 9 * C * STEP);
    const u32 tile_at = shared_address(shared), weight_at = shared_address(weights);
    const int lane = THREAD % 32, warp = THREAD / 32, mine = lane % 4 * MINE;
    const int begin = PROGRAM * per, tiles = (pixels + M - 1) / M;
    const int end = begin + per < tiles ? begin + per : tiles;

    fetch(tile_at, x, begin, pixels);
    copies_end();
#if ENTER
    const Entry enter(norm, gamma, beta);
#endif
    no_columns(shared);
    no_columns(shared + TILE_BYTES);
    hold_weight(weights, weight);
    barrier();
    u32 held[C == 16 ? 9 : 1][4];  // the whole weight, where it is small
    if constexpr (C == 16) {
#pragma unroll
        for (int tap = 0; tap < 9; tap++) {
            load_turned(held[tap], weight_at + place(lane % 16, lane / 16) + place(16 * tap, 0));
        }
    }
#if BACK
    Passing<BACK == 2> passing(norm, gamma, beta);
#else
    float first[MINE], second[MINE], origin[MINE];  // sums of deviations from the first pixel's values
    float* origins = sums + 2 * WARPS * C;
#pragma unroll
    for (int c = 0; c < MINE; c++) first[c] = second[c] = origin[c] = 0.0f;
#endif
    u32 corners[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) corners[m] = tile_at + place(corner((warp * MT + m) * 16 + lane % 16), lane / 16);

    for (int tile = begin; tile < end; tile++) {
        const int other = (tile - begin) % 2 * TILE_BYTES;
        if (tile + 1 < end) {
            fetch(tile_at + TILE_BYTES - other, x, tile + 1, pixels);
            copies_end();
            await_copies<1>();
        } else {
            await_copies<0>();
        }
#if ENTER
        enter(shared + other, tile, pixels);
#endif
        barrier();
        const int pixel = tile * M + warp * MT * 16 + lane / 4;
#if BACK
        constexpr int AHEAD = C == 16 ? 2 * MT : 1;  // asked for before the products, where registers are left
        Some maps[AHEAD], beside[AHEAD], after[AHEAD];
        auto ask = [&](int i, int at) {
            maps[i] = read_some(below, at, mine);
            if constexpr (BACK == 2) {
                beside[i] = read_some(skip, at, mine);
                after[i] = read_some(seen, at, mine);
            }
        };
        if constexpr (AHEAD > 1) {
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                if (FULL || pixel + 8 * i < pixels) ask(i, pixel + 8 * i);
            }
        }
#endif
        float sum[MT][NT][4];
        u32 here[MT];
#pragma unroll
        for (int m = 0; m < MT; m++) here[m] = corners[m] + other;
        convolve<C == 16>(sum, here, weight_at, held);
        barrier();  // the tile may be overwritten

#if !BACK
        if (tile == begin) {
            if (warp == 0 && lane < 4) {
#pragma unroll
                for (int c = 0; c < MINE; c++) origins[mine + c] = sum[0][c / 2][c % 2];
            }
            barrier();
#pragma unroll
            for (int c = 0; c < MINE; c++) origin[c] = origins[mine + c];
        }
#endif
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int at = pixel + 8 * i;
            if (FULL || at < pixels) {
                float value[MINE];
                Some left;
#pragma unroll
                for (int c = 0; c < MINE; c++) value[c] = sum[i / 2][c / 2][i % 2 * 2 + c % 2];
#if BACK
                if constexpr (AHEAD == 1) ask(0, at);
                left = passing(value, maps[i % AHEAD], beside[i % AHEAD], after[i % AHEAD]);
#else
#pragma unroll
                for (int c = 0; c < MINE; c++) {
                    if (c % 2 == 0) left.two[c / 2] = rounded(value[c], value[c + 1]);
                    const float off = value[c] - origin[c];
                    first[c] += off;
                    second[c] += off * off;
                }
#endif
                write_some(out, at, mine, left);
            }
        }
    }

#if BACK
    gather_sums(passing.first, passing.second, sums);
#else
    gather_sums(first, second, sums);
#endif
    for (int c = THREAD; c < C; c += THREADS) {
        float one = 0.0f, two = 0.0f;
        for (int w = 0; w < WARPS; w++) one += sums[2 * w * C + c], two += sums[(2 * w + 1) * C + c];
#if !BACK  // as mean and M2
        const int left = pixels - begin * M, run = (end - begin) * M;
        const float off = one / (float)(left < run ? left : run);
        two = two - one * off > 0 ? two - one * off : 0.0f;
        one = origins[c] + off;
#endif
        write<float>(partial + 2 * PROGRAM * C + c, one);
        write<float>(partial + (2 * PROGRAM + 1) * C + c, two);
    }
}
