package contract

// stated adds what follows from the facts alone: jobs that cannot go on with other partitions.
func (c *comparison) stated() {
	for _, u := range c.facts.Unfit {
		c.add(Finding{Kind: PartitioningChanged, Level: Refuses, Dataset: u.Name, Text: u.Text, Hint: u.Hint,
			Breaking: true, Consumers: []string{u.Consumer}})
	}
}
