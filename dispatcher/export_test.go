package dispatcher

// What only tests of other packages in this folder use.
type (
	Claiming         = claiming
	InProcessCommits = inProcessCommits
)

func (d *Dispatcher) ClaimAll(claims []*Claiming)        { d.claimAll(claims) }
func (d *Dispatcher) NewNextClaim(early bool) *nextClaim { return d.newNextClaim(early) }
