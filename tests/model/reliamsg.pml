/*
 * The protocol as a model: one producer, two sites, one group. docs/explanation/model.md describes its scope.
 *
 * Rules in brackets are those of docs/explanation/protocol.md. Every step is atomic. Every fault has a budget, and every
 * other step is taken only if it changes something: so there is no cycle, every run ends, and whatever must happen "once
 * faults end" must hold at the end of each run. tests/model/check.py compiles it and reports the results.
 *
 * Switches (-D): RELEASE_CONFIRMED, IMPATIENT, the budgets below, and BAD_... for variants that break a rule.
 */

#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef PRODUCER_CRASHES
#define PRODUCER_CRASHES 1
#endif
#ifndef RESTORES
#define RESTORES 0
#endif
#ifndef CONSUMER_CRASHES
#define CONSUMER_CRASHES 1
#endif
#ifndef WIPES
#define WIPES 2      /* times that a site loses all that it has confirmed and that nobody has acknowledged */
#endif
#ifndef UNCONFIRMED
#define UNCONFIRMED 1    /* confirms that are lost on the way [P4] */
#endif

/* A message is one bit of a mask: bit 3 * epoch + number - 1, for three epochs of three numbers. */
#define NONE 3
#define AT(e, n)    (3 * (e) + (n) - 1)
#define BIT(i)      (1 << (i))
#define EPOCH_OF(i) ((i) / 3)
#define SEQ_OF(i)   ((i) % 3 + 1)
#define OF_EPOCH(e) (7 << (3 * (e)))
#define BELOW(e, n) (BIT(AT(e, n)) - 1)
#define SAID(m)     (1 << (m))
#define EACH(A)     A(0) A(1) A(2) A(3) A(4) A(5) A(6) A(7) A(8)

/* Published messages: message m has the m-th turn, and the place [m] of its identity. */
byte published;
byte content[9];

/* The producer's outbox, on disk. */
byte epoch;
byte number = 1;             /* the next one [I1] */
short box;                   /* batches that are held */
byte last[3];                /* of each epoch, its last number: the chain */
byte prev_epoch[3] = { NONE, NONE, NONE };   /* [I4] */
byte prev_last[3];

/* The sites: what each has for the group, and what the producer knows each to have [P3]. */
short site[2];
short confirmed[2];

/* The group, in memory: */
short held;                  /* arrived, and not settled */
byte heard[3];               /* of each epoch, the end that a status told of [S1, S2] */
byte cursor = 1;             /* the next number to hand out */
byte acked = 1;              /* numbers below are acknowledged */
byte redelivered_below;      /* [C6] */
/* and on disk: */
byte entered;                /* the current epoch */
byte position = 1;           /* numbers below are settled */
byte high_water;             /* numbers below may have been delivered [C6] */
short inbox;                 /* held messages that are stored [C5] */
byte left[3];                /* where each epoch was left [E4] */

/* Budgets of faults. */
byte producer_crashes = PRODUCER_CRASHES;
byte restores = RESTORES;
byte consumer_crashes = CONSUMER_CRASHES;
byte wipes = WIPES;
byte unconfirmed = UNCONFIRMED;

/* For the judge: messages by their turn. */
byte handed;                 /* given to the application */
byte done;                   /* acknowledged, and that is committed */
byte declared;               /* absent, and the application was told */
byte newest;                 /* the latest first delivery */
byte orphans;                /* a restored outbox has them no more */
short orphaned;              /* the same, as a mask */
byte gone;                   /* of those, messages that were nowhere else: lost with the disk, not by the protocol */
bool duplicate, unflagged, disorder, loss, needless, stuck;

/* The group's knowledge of an epoch, and the end of the current one [E1]. */
#define KNOWN(e)    ((held & OF_EPOCH(e)) || heard[e])
#define NEXT        ((entered < 1 && KNOWN(1)) -> 1 : ((entered < 2 && KNOWN(2)) -> 2 : NONE))
#define HAS(n)      (n <= 3 && (held & BIT(AT(entered, n))))
#define TOP         (HAS(3) -> 3 : (HAS(2) -> 2 : (HAS(1) -> 1 : 0)))
#define SAID_END    ((NEXT != NONE && prev_epoch[NEXT] == entered) -> prev_last[NEXT] : 0)
#define MAX(a, b)   ((a) > (b) -> (a) : (b))
#define END         MAX(MAX(TOP, heard[entered]), SAID_END)
#define GAP         (cursor <= END && !HAS(cursor))
#define IDLE        (acked == cursor)
#define WAITS(i)    (EPOCH_OF(i) > entered || (EPOCH_OF(i) == entered && SEQ_OF(i) >= cursor))
#define SETTLED(i)  (EPOCH_OF(i) == entered && SEQ_OF(i) < position || EPOCH_OF(i) < entered && SEQ_OF(i) <= left[EPOCH_OF(i)])
#define BEYOND(i)   (EPOCH_OF(i) < entered && SEQ_OF(i) > left[EPOCH_OF(i)])
#define SAFE(i)     (SETTLED(i) || (inbox & BIT(i)))

inline hand_out(m, again) {
	/* Once [C2], flagged if it may have been before [C6], in order [C3]. */
	duplicate = duplicate || (done & SAID(m));
	assert(!duplicate);
	unflagged = unflagged || ((handed & SAID(m)) && !(again));
	assert(!unflagged);
	disorder = disorder || (m < newest && !(again));
	assert(!disorder);
	handed = handed | SAID(m);
	newest = MAX(newest, m)
}

/* ---- producer ---------------------------------------------------------------------------------------------- */

inline publish() {
	/* Stored with its number in one transaction [I1, I2, P1]. */
	published++;
	content[AT(epoch, number)] = published;
	box = box | BIT(AT(epoch, number));
	last[epoch] = number;
	number++
}

inline open_anew() {
	/* A new epoch, whose prev is the latest that is not empty [I3, I4]. */
	epoch++;
	number = 1;
	if
	:: epoch == 2 && last[1] -> prev_epoch[2] = 1; prev_last[2] = last[1]
	:: else ->
		if
		:: last[0] -> prev_epoch[epoch] = 0; prev_last[epoch] = last[0]
		:: else
		fi
	fi
}

/* To each site in the order of rows [P2]; a confirm that is lost makes a duplicate [P4]. */
#define SEND(s, i) \
	:: atomic { (box & ~confirmed[s] & BIT(i)) && !(box & ~confirmed[s] & (BIT(i) - 1)) -> \
		site[s] = site[s] | BIT(i); \
		if \
		:: confirmed[s] = confirmed[s] | BIT(i) \
		:: unconfirmed > 0 -> unconfirmed-- \
		fi }
#define SEND_0(i) SEND(0, i)
#define SEND_1(i) SEND(1, i)

/* Messages may leave the outbox: confirmed by all sites [P7, P8], and reported as settled by the group [P9, S6]. */
#ifdef BAD_TELL_UNCOMMITTED
#define TOLD BELOW(entered, cursor)
#else
#define TOLD BELOW(entered, position)
#endif
#if defined(RELEASE_CONFIRMED) || defined(BAD_RELEASE_ON_CONFIRM)
#define LEAVES (box & confirmed[0] & confirmed[1])
#else
#define LEAVES (box & confirmed[0] & confirmed[1] & TOLD)
#endif

active proctype Producer() {
end:	do
	:: atomic { published < MESSAGES -> publish() }
	EACH(SEND_0)
	EACH(SEND_1)
	:: atomic { LEAVES -> box = box & ~LEAVES }
	od
}

/* ---- faults ------------------------------------------------------------------------------------------------ */

inline restore(kept) {
	/* The outbox in its state after its first messages, up to `kept`: later ones are not in it. */
	byte i;
	box = 0;
	last[0] = 0; last[1] = 0; last[2] = 0;
	for (i : 0 .. 8) {
		if
		:: content[i] && content[i] <= kept ->
			box = box | BIT(i);
			last[EPOCH_OF(i)] = MAX(last[EPOCH_OF(i)], SEQ_OF(i))
		:: content[i] > kept ->
			orphans = orphans | SAID(content[i]);
			orphaned = orphaned | BIT(i);
			if
			:: !((site[0] | site[1]) & BIT(i)) && !SAFE(i) -> gone = gone | SAID(content[i])
			:: else
			fi
		:: else
		fi
	}
	i = 0;
	confirmed[0] = 0; confirmed[1] = 0
}

active proctype Faults() {
end:	do
	:: atomic { producer_crashes > 0 && published > 0 && epoch < 2 ->
		producer_crashes--;
		/* The cursors had not been stored [P3]. */
		confirmed[0] = 0; confirmed[1] = 0;
		open_anew() }
	:: atomic { restores > 0 && published > 1 && epoch < 2 ->
		restores--;
		if
		:: restore(published - 1)
		:: restore(1)
		fi;
#ifdef BAD_REUSE_NUMBERS
		number = last[epoch] + 1
#else
		open_anew()
#endif
		}
	:: atomic { wipes > 0 && (site[0] & ~orphaned) -> wipes--; site[0] = site[0] & orphaned }
	:: atomic { wipes > 0 && (site[1] & ~orphaned) -> wipes--; site[1] = site[1] & orphaned }
	:: atomic { consumer_crashes > 0 && (held != inbox || cursor != position) ->
		consumer_crashes--;
		held = inbox;
		heard[0] = 0; heard[1] = 0; heard[2] = 0;
		cursor = position; acked = position;
		redelivered_below = high_water }
	od
}

/* ---- group ------------------------------------------------------------------------------------------------- */

/* From any site, in any order: new [C2], or a duplicate of a message that is safe here, which the site may delete [C4]. */
#ifdef BAD_ACKNOWLEDGE_EARLY
#define TAKEN(s, i) site[s] = site[s] & ~BIT(i)
#else
#define TAKEN(s, i) skip
#endif
#ifdef BAD_DEDUPE_EXPIRES
#define KNOWN_AGAIN(i) if :: (done & SAID(content[i])) -> hand_out(content[i], false) :: else fi
#else
#define KNOWN_AGAIN(i) skip
#endif
#ifdef BAD_LATE_IN_ORDER
#define LATE(i) if :: (declared & ~handed & SAID(content[i])) -> hand_out(content[i], false) :: else fi
#else
#define LATE(i) skip
#endif
#define RECEIVE(s, i) \
	:: atomic { (site[s] & BIT(i)) && WAITS(i) && !(held & BIT(i)) -> \
		held = held | BIT(i); \
		TAKEN(s, i) } \
	:: atomic { (site[s] & BIT(i)) && SAFE(i) -> \
		site[s] = site[s] & ~BIT(i); \
		KNOWN_AGAIN(i); \
		LATE(i) } \
	/* Of an epoch that was left before it [E4]. */ \
	:: atomic { (site[s] & BIT(i)) && BEYOND(i) -> \
		site[s] = site[s] & ~BIT(i); \
		declared = declared | SAID(content[i]); \
		LATE(i) }
#define RECEIVE_0(i) RECEIVE(0, i)
#define RECEIVE_1(i) RECEIVE(1, i)

/* Announced messages that have not arrived are requested, and come from the outbox [A1, A6]. */
#define REPAIR(i) \
	:: atomic { (box & BIT(i)) && WAITS(i) && !(held & BIT(i)) && heard[EPOCH_OF(i)] >= SEQ_OF(i) -> \
		held = held | BIT(i) }

/* Messages that are out of order, or wait for long, are stored [C5]. */
#define STORE(i) \
	:: atomic { (held & ~inbox & BIT(i)) -> inbox = inbox | BIT(i) }

#define HEAR(e) \
	:: atomic { e >= entered && last[e] > heard[e] -> heard[e] = last[e] }

inline commit_acknowledged() {
	do
	:: position < acked ->
		done = done | SAID(content[AT(entered, position)]);
		held = held & ~BIT(AT(entered, position));
		inbox = inbox & ~BIT(AT(entered, position));
		position++
	:: else -> break
	od
}

/* The clock of a gap at the head of its stream may run out [G1]. Where the group is patient, it does not as long as a
 * site has the missing messages; and it waits for a producer that holds them [G5]. */
#define HEAD BIT(AT(entered, cursor))
#ifdef IMPATIENT
#define A_SITE_HAS_IT 0
#else
#define A_SITE_HAS_IT ((site[0] | site[1]) & HEAD)
#endif
#ifdef BAD_CLOCK_RUNS
#define IS_PROMISED 0
#else
#define IS_PROMISED (box & HEAD)
#endif

inline pass_gap() {
#ifndef BAD_SILENT_GAP
	declared = declared | SAID(content[AT(entered, cursor)]);   /* [G2] */
	needless = needless || (declared & ~orphans & ~SAID(0));
#ifndef IMPATIENT
	assert(!needless);
#endif
#endif
	cursor++; acked = cursor; position = cursor
}

/* The next epoch is entered when the current one is delivered up to where it ended [E1], or to its known end [E3]. */
#ifdef BAD_FORGET_PREV
#define FINISHED (NEXT != NONE && !HAS(cursor))
#else
#define FINISHED (NEXT != NONE && !HAS(cursor) && cursor > END && (prev_epoch[NEXT] == NONE || prev_epoch[NEXT] <= entered))
#endif

inline enter_next() {
	byte to = NEXT;
	left[entered] = cursor - 1;
	held = held & ~OF_EPOCH(entered);
	inbox = inbox & ~OF_EPOCH(entered);
	heard[entered] = 0;
	entered = to;
	cursor = 1; acked = 1; position = 1; high_water = 0; redelivered_below = 0;
	to = 0
}

active proctype Group() {
end:	do
	EACH(RECEIVE_0)
	EACH(RECEIVE_1)
	EACH(REPAIR)
	EACH(STORE)
#ifndef BAD_NO_STATUS
	HEAR(0) HEAR(1) HEAR(2)   /* [S1, P13] */
#endif
#ifndef BAD_NO_HIGH_WATER
	:: atomic { HAS(cursor) && high_water <= cursor -> high_water = cursor + 1 }   /* [C6] */
	:: atomic { HAS(cursor) && high_water > cursor ->
#else
	:: atomic { HAS(cursor) ->
#endif
		hand_out(content[AT(entered, cursor)], cursor < redelivered_below);
		cursor++ }
	:: atomic { acked < cursor -> acked++ }
	:: atomic { position < acked -> commit_acknowledged() }
	:: atomic { GAP && IDLE && position == acked && !A_SITE_HAS_IT && !IS_PROMISED -> pass_gap() }
	:: atomic { FINISHED && IDLE && position == acked -> enter_next() }
	od
}

/* ---- judge ------------------------------------------------------------------------------------------------- */

/* No step is left: everything is delivered or declared [C3, G2], and released by the outbox [P8, P9]. */
active proctype Judge() {
	byte m = 1;
	atomic { timeout ->
		do
		:: m <= MESSAGES ->
			loss = loss || !((done | declared | gone) & SAID(m));
			m++
		:: else -> break
		od;
		assert(!loss);
#ifndef IMPATIENT
		needless = needless || (declared & ~orphans);
		assert(!needless);
#endif
		stuck = published < MESSAGES || box;
		assert(!stuck) }
}
